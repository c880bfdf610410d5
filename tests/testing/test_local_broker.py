"""A broker for tests, used as its users use it."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from broker.brokers import send_command
from tiermq.broker.topic.broker_registration import BrokerRegistration
from tiermq.errors import BadConfig, IllegalMessage, PeerGone, RemotingError, StoreError
from tiermq.message.record import decode_records
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.testing import LocalBroker
from tiermq.testing.local_broker import check_settings
from waiting import until


def at(address: str) -> BlockingClient:
    host, _, port = address.rpartition(":")
    return BlockingClient(host, int(port), timeout_s=60.0)


def test_what_a_client_sends_is_among_the_messages(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        with at(broker.address) as client:
            assert client.request(send_command("orders", b"paid", queue=1)).code == ResponseCode.SUCCESS
        assert [(message.queue_id, message.body) for message in broker.messages("orders")] == [(1, b"paid")]
        assert broker.messages("orders", queue_id=0) == []
        assert broker.messages("nothing") == []


def test_a_topic_that_was_made_is_known_to_the_name_server(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        broker.create_topic("orders", queues=3)
        with at(broker.name_server) as client:
            route = client.request(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "orders"}))
        assert b'"readQueueNums":3' in bytes(route.body)
        assert broker.address.encode() in bytes(route.body)


def test_what_a_test_puts_is_as_a_producer_s_message(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        stored = broker.send("orders", b"paid", 2, tags="paid", keys=["order-42"], properties={"place": "north"})
        assert (stored.body, stored.tags, stored.keys, stored.queue_id) == (b"paid", "paid", ["order-42"], 2)
        assert stored.properties["place"] == "north"
        assert broker.messages("orders") == [stored]


def test_a_key_that_a_test_puts_is_one_key(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        assert broker.send("orders", b"paid", keys="42").keys == ["42"]
        with pytest.raises(IllegalMessage, match="without blanks"):
            broker.send("orders", b"paid", keys="4 2")


def test_a_delay_that_a_test_puts_is_kept(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        waiting = broker.send("orders", b"late", 1, properties={"DELAY": "18"}, keys="42")
        assert (waiting.topic, broker.messages("orders")) == ("SCHEDULE_TOPIC_XXXX", [])
        broker.advance(hours=2)
        until(lambda: broker.messages("orders"))
        [message] = broker.messages("orders")
        assert (message.body, message.queue_id, message.keys) == (b"late", 1, ["42"])
        with pytest.raises(StoreError, match="delay level"):
            broker.send("orders", b"late", properties={"DELAY": "soon"})


def test_time_that_is_moved_makes_delayed_messages_due(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        level_of_two_hours = "DELAY\x0118\x02"
        with at(broker.address) as client:
            answer = client.request(send_command("orders", b"late", properties=level_of_two_hours))
            assert answer.code == ResponseCode.SUCCESS
            assert broker.messages("orders") == []
            broker.advance(hours=2)
            while not broker.messages("orders"):
                continue
            # The client is as welcome as before, although it was silent for two hours of the broker's time.
            assert client.request(send_command("orders", b"at once")).code == ResponseCode.SUCCESS
        assert [message.body for message in broker.messages("orders")] == [b"late", b"at once"]


def test_a_restart_keeps_messages_offsets_and_addresses(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        broker.send("orders", b"before")
        place = {"consumerGroup": "G", "topic": "orders", "queueId": "0"}
        broker.broker.parts.groups.find_or_make("G")
        with at(broker.address) as client:
            update = RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext={**place, "commitOffset": "1"})
            assert client.request(update).code == ResponseCode.SUCCESS
        addresses = broker.address, broker.name_server
        broker.restart()
        assert (broker.address, broker.name_server) == addresses
        assert [message.body for message in broker.messages("orders")] == [b"before"]
        assert broker.committed_offset("G", "orders", 0) == 1
        assert broker.committed_offset("other", "orders", 0) is None


def test_the_topic_of_a_message_that_a_test_puts_is_known_to_the_name_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_over = BrokerRegistration._hand_over

    def late(registration: BrokerRegistration) -> None:
        """As if the thread that notifies name servers had no time for a moment."""
        asyncio.get_running_loop().call_later(0.3, hand_over, registration)

    with LocalBroker(tmp_path) as broker, at(broker.name_server) as client:
        monkeypatch.setattr(BrokerRegistration, "_hand_over", late)
        broker.send("orders", b"paid")
        route = client.request(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "orders"}))
        assert route.code == ResponseCode.SUCCESS


@pytest.mark.skipif(sys.platform != "linux", reason="other systems let no process keep a port for another")
def test_no_other_process_gets_the_port_of_a_broker_that_is_being_started_again(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        port = broker.broker.port
        broker._stop_broker()  # The first half of a restart.
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with pytest.raises(PeerGone, match="refused"):
            BlockingClient("127.0.0.1", port, timeout_s=60.0)
        broker.start()
        assert broker.broker.port == port
    assert broker._port is None


def test_settings_go_to_the_broker_and_to_its_store(tmp_path: Path) -> None:
    with (
        LocalBroker(tmp_path, auto_create_topic_enable=False, max_message_size=1_000) as broker,
        at(broker.address) as client,
    ):
        assert client.request(send_command("unheard")).code == ResponseCode.TOPIC_NOT_EXIST
        broker.create_topic("orders")
        too_large = client.request(send_command("orders", bytes(2_000)))
        assert too_large.code == ResponseCode.MESSAGE_ILLEGAL
    with pytest.raises(BadConfig, match="no_such_setting"), LocalBroker(tmp_path / "other", no_such_setting=1):
        pass


def test_a_broker_that_does_not_run_reports_so(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path)
    with pytest.raises(RemotingError, match="call start"):
        _ = broker.name_server
    with pytest.raises(RemotingError, match="call start"):
        broker.send("orders", b"")
    broker.start()
    with pytest.raises(RemotingError, match="stop it first"):
        broker.start()
    broker.stop()
    broker.stop()


def test_history_can_lie_in_a_tier(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "store", tier=f"file://{tmp_path}/tier") as broker:
        broker.send("orders", b"kept")
        assert [message.body for message in broker.messages("orders")] == [b"kept"]


def test_settings_that_are_no_dictionary_are_refused() -> None:
    assert check_settings({"broker_name": "b"}) == {"broker_name": "b"}
    with pytest.raises(BadConfig, match="expected a dictionary"):
        check_settings(["broker_name"])


def test_a_pull_gives_the_record_that_is_among_the_messages(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker, at(broker.address) as client:
        stored = broker.send("orders", b"paid")
        fields = {
            "consumerGroup": "G", "topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
            "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
        }  # fmt: skip
        pull = RemotingCommand(RequestCode.PULL_MESSAGE, ext={name: str(value) for name, value in fields.items()})
        assert list(decode_records(bytes(client.request(pull).body))) == [stored]
