"""Who may pop is tested over the wire in test_popping.py; here is what comes of it."""

from __future__ import annotations

from pathlib import Path

from broker.consuming import running
from broker.popping_peer import PopPeer
from tiermq.remoting.codes import RequestCode, ResponseCode


def test_a_broker_that_may_not_be_read_from_gives_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as broker, PopPeer(broker) as peer:
        peer.pop()
        assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=2").code == 0
        assert peer.pop_raw().code == ResponseCode.NO_PERMISSION


def test_a_topic_that_is_forbidden_to_a_group_gives_it_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as broker, PopPeer(broker) as peer:
        broker.parts.groups.set_forbidden("G", "T", 4)
        assert peer.pop_raw().code == ResponseCode.NO_PERMISSION
        assert peer.pop_raw(consumerGroup="H").code == ResponseCode.POLLING_TIMEOUT


def test_sql92_that_is_switched_off_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, enable_property_filter=False) as broker, PopPeer(broker) as peer:
        answer = peer.pop_raw(exp="a = 1", expType="SQL92")
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
