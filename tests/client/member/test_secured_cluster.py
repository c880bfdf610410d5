"""Accounts and TLS: requests are signed, connections encrypted, and what an account may not do is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiermq
from servers.serving import Serving
from tiermq import Message
from tiermq.client import ClientTls
from tiermq.errors import BadConfig, RemotingError, RequestRefused
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


@pytest.mark.parametrize("tls", [True, ClientTls()], ids=["True", "ClientTls()"])
def test_whoever_asks_for_tls_speaks_nothing_else(tmp_path: Path, tls: bool | ClientTls) -> None:
    with (
        Serving(tmp_path / "store", "--tls", "enforcing") as served,
        tiermq.connect(served.name_server, tls=tls) as cluster,
        cluster.producer("shop") as producer,
    ):
        producer.send(Message("orders", b"by TLS"))


@pytest.mark.parametrize("tls", ["ca.pem", Path("ca.pem"), 1, None])
def test_what_is_no_tls_setting_is_refused_and_not_taken_for_none(tls: Any) -> None:
    with pytest.raises(BadConfig, match=r"tls: expected True, a tiermq\.client\.ClientTls"):
        tiermq.connect("127.0.0.1:9876", tls=tls)
