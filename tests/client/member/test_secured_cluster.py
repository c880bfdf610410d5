"""Accounts and TLS: requests are signed, connections encrypted, and what an account may not do is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiermq
from servers.serving import Serving
from tiermq import Message
from tiermq.errors import RemotingError, RequestRefused
from tiermq.remoting.permissions import Credentials

ACCOUNTS = """
[[accounts]]
accessKey = "shop"
secretKey = "a long secret"
defaultTopicPerm = "DENY"
defaultGroupPerm = "SUB"
topicPerms = ["orders=PUB|SUB"]
"""


def test_an_account_sends_and_consumes_over_tls_and_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    with Serving(tmp_path / "store", "--acl", str(accounts), "--tls", "enforcing") as served:
        keys: dict[str, Any] = {"access_key": "shop", "secret_key": "a long secret"}
        with (
            tiermq.connect(served.name_server, tls=True, **keys) as cluster,
            cluster.producer("shop") as producer,
            cluster.consumer("audit", topic="orders", start="first") as consumer,
        ):
            producer.send(Message("orders", b"signed", properties={"name": "with ä"}))
            producer.send_later(Message("orders", b"later")).result()
            producer.send_all([Message("orders", b"batch")])
            producer.send_oneway(Message("orders", b"oneway"))
            found = {next(consumer).body for _ in range(4)}
            assert found == {b"signed", b"later", b"batch", b"oneway"}
            with pytest.raises(RequestRefused, match="secret"):
                producer.send(Message("secret", b"x"))
        monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "shop")
        monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "a long secret")
        with tiermq.connect(served.name_server, tls=True) as cluster, cluster.producer("shop") as producer:
            producer.send(Message("orders", b"by the environment"))
        for access_key, secret_key in (("shop", "wrong"), ("who", "x")):
            with (
                tiermq.connect(served.name_server, tls=True, access_key=access_key, secret_key=secret_key) as cluster,
                cluster.producer("shop", patience_s=0) as producer,
                pytest.raises(RemotingError),
            ):
                producer.send(Message("orders", b"x"))
        with (
            tiermq.connect(served.name_server, **keys) as cluster,
            cluster.producer("shop", patience_s=0) as producer,
            pytest.raises(RemotingError, match="TLS"),
        ):
            producer.send(Message("orders", b"x"))


def test_credentials_hide_their_secret() -> None:
    assert "a long secret" not in repr(Credentials("shop", "a long secret"))
