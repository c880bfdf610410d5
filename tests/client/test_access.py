"""As whom a cluster is asked: keys of the environment, both or none."""

from __future__ import annotations

import pytest

from tiermq.client.access import Access
from tiermq.errors import BadConfig


def test_half_of_the_credentials_is_an_error() -> None:
    with pytest.raises(BadConfig, match="ROCKETMQ_SECRET_KEY"):
        Access("127.0.0.1:1", access_key="key").client()


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_ACCESS_KEY", raising=False)
    monkeypatch.delenv("ROCKETMQ_SECRET_KEY", raising=False)
    assert Access.of_environment("a:1") == Access("a:1")
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "key")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "word")
    assert Access.of_environment("a:1", tls=True) == Access("a:1", "key", "word", tls=True)
