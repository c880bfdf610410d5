"""One queue over the wire: bounds, times, records; patience with a broker that is away."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import lagging_dispatch
from client.wire_world import EACH, filled
from remoting.peers import make_server, serving
from tiermq import Message
from tiermq.broker.pull.pull_processor import PullProcessor
from tiermq.client.cluster_client import Access, BlockingCluster, QueuePlace
from tiermq.client.queue_access import HOLD_MS, Pulled, QueueAccess, find_by_key, patiently
from tiermq.errors import PeerGone, RequestRefused
from tiermq.message.record import decode_records
from tiermq.remoting.access import ANY_ACCOUNT
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.permissions import AccessTable


def test_a_queue_shows_its_bounds_times_and_records(tmp_path: Path) -> None:
    with filled(tmp_path) as (broker, cluster):
        place = cluster.run(cluster.client.route("orders")).readable[1]
        queue = QueueAccess(cluster.client, "orders", place)
        assert cluster.run(queue.bounds()) == (0, EACH)
        pulled = cluster.run(queue.pull(10, most=4))
        assert [message.queue_offset for message in decode_records(pulled.records)] == [10, 11, 12, 13]
        assert (pulled.code, pulled.next_offset) == (ResponseCode.SUCCESS, 14)
        assert cluster.run(queue.pull(EACH)).code == ResponseCode.PULL_NOT_FOUND
        stored = broker.messages("orders", 1)
        assert cluster.run(queue.offset_at(0)) == 0
        assert cluster.run(queue.offset_at(stored[-1].store_timestamp_ms + 1)) == EACH
        odd = cluster.run(queue.pull(0, "odd"))
        assert {message.tags for message in decode_records(odd.records)} == {"odd"}
        assert broker.broker.parts.offsets.groups_of("orders") == [], "a look commits nothing"


def test_bounds_have_what_was_acknowledged_and_is_not_dispatched_yet(tmp_path: Path) -> None:
    with filled(tmp_path) as (broker, cluster):
        place = cluster.run(cluster.client.route("orders")).readable[0]
        queue = QueueAccess(cluster.client, "orders", place)
        with lagging_dispatch(broker.broker):
            for number in range(3):
                broker.broker.parts.local.put(Message("orders", b"late %d" % number, place.queue_id))
            assert cluster.run(queue.bounds()) == (0, EACH + 3)


def test_offsets_without_messages_are_waited_for_once(tmp_path: Path) -> None:
    with filled(tmp_path) as (broker, cluster):
        place = cluster.run(cluster.client.route("orders")).readable[0]
        queue = QueueAccess(cluster.client, "orders", place)
        local = broker.broker.parts.local
        local.advance_queue("orders", place.queue_id, EACH + 5)
        assert local.max_offset("orders", place.queue_id, committed=False) == EACH + 5
        [pulls] = (each for each in broker.broker.processors if isinstance(each, PullProcessor))
        asked = cluster.later(queue.end())
        while not pulls.long_polling.held:
            assert not asked.done()
        broker.advance(milliseconds=HOLD_MS)
        assert asked.result() == EACH


def test_a_broker_that_starts_again_is_waited_for(tmp_path: Path) -> None:
    with filled(tmp_path) as (broker, cluster):
        place = cluster.run(cluster.client.route("orders")).readable[0]
        queue = QueueAccess(cluster.client, "orders", place)
        assert cluster.run(queue.bounds()) == (0, EACH)
        broker.restart()
        assert cluster.run(queue.bounds()) == (0, EACH)


def soon(cluster: BlockingCluster, queue: QueueAccess, offset: int, most: int) -> Pulled:
    """The answer of a pull that was sent without a task."""

    async def pull() -> Pulled:
        sent = queue.pull_soon(offset, most)
        assert sent is not None
        return await queue.answer_of(sent, offset, most)

    return cluster.run(pull())


def test_pulls_that_are_sent_soon_have_the_answers_of_others(tmp_path: Path) -> None:
    with filled(tmp_path) as (_, cluster):
        place = cluster.run(cluster.client.route("orders")).readable[1]
        queue = QueueAccess(cluster.client, "orders", place)
        assert queue.pull_soon(0, 4) is None, "nothing is connected yet"
        for offset, most in ((0, 4), (10, 1), (EACH - 3, 32), (EACH, 32)):
            other = cluster.run(queue.pull(offset, most=most))
            assert soon(cluster, queue, offset, most) == other
            assert len(list(decode_records(other.records))) == min(most, EACH - offset)


def test_a_pull_that_was_sent_soon_is_done_again_when_its_connection_ends(tmp_path: Path) -> None:
    with filled(tmp_path) as (_, cluster):
        place = cluster.run(cluster.client.route("orders")).readable[1]
        queue = QueueAccess(cluster.client, "orders", place)
        before = cluster.run(queue.pull(5, most=2))
        client = cluster.client.connected(place.address)
        assert client is not None

        async def cut() -> Pulled:
            sent = queue.pull_soon(5, 2)
            assert sent is not None
            assert client.connection is not None
            client.connection.abort()
            return await queue.answer_of(sent, 5, 2)

        assert cluster.run(cut()) == before
        assert cluster.client.connected(place.address) not in (None, client)


def test_a_pull_that_was_sent_soon_and_is_not_answered_in_time_is_sent_by_another_connection(tmp_path: Path) -> None:
    with filled(tmp_path) as (_, cluster):
        place = cluster.run(cluster.client.route("orders")).readable[1]
        queue = QueueAccess(cluster.client, "orders", place)
        before = cluster.run(queue.pull(5, most=2))
        client = cluster.client.connected(place.address)
        assert client is not None

        async def late() -> Pulled:
            queue.timeout_s = 0.0  # Its timer comes before its answer is read.
            sent = queue.pull_soon(5, 2)
            del queue.timeout_s
            assert sent is not None
            return await queue.answer_of(sent, 5, 2)

        assert cluster.run(late()) == before
        assert cluster.client.connected(place.address) not in (None, client)
        assert not client.is_open, "no request of the old connection is left"


def test_pulls_of_an_account_that_are_sent_soon_are_signed(tmp_path: Path) -> None:
    table = tmp_path / "acl.toml"
    table.write_text(
        '[[accounts]]\naccessKey = "reader"\nsecretKey = "a secret"\n'
        'defaultTopicPerm = "SUB"\ndefaultGroupPerm = "SUB"\n'
    )
    server = make_server(acl=AccessTable.load(table))
    asked: list[RemotingCommand] = []

    def pull(_connection: Connection, command: RemotingCommand) -> RemotingCommand:
        asked.append(command)
        return command.respond(ext={"nextBeginOffset": command.ext["queueOffset"]})

    server.register(RequestCode.PULL_MESSAGE, pull, ANY_ACCOUNT)
    with serving(server) as running, BlockingCluster(Access("127.0.0.1:1", "reader", "a secret")) as cluster:
        place = QueuePlace("b", f"127.0.0.1:{running.port}", 3)
        queue = QueueAccess(cluster.client, "orders", place)
        assert cluster.run(queue.pull(7)) == Pulled(0, 7, b"")
        assert soon(cluster, queue, 8, 32) == Pulled(0, 8, b"")
    assert [command.header_type for command in asked] == [HeaderType.JSON, HeaderType.ROCKETMQ]
    assert [command.account.access_key for command in asked if command.account] == ["reader", "reader"]


async def _answers(codes: list[int]) -> str:
    code = codes.pop(0)
    if code < 0:
        raise PeerGone("gone")
    if code:
        raise RequestRefused("no", code)
    return "yes"


def test_busy_and_gone_are_asked_again_and_refusals_are_not(tmp_path: Path) -> None:
    with filled(tmp_path) as (_, cluster):
        assert cluster.run(patiently(partial(_answers, [ResponseCode.SYSTEM_BUSY, -1, 0]))) == "yes"
        with pytest.raises(PeerGone):
            cluster.run(patiently(partial(_answers, [-1, -1, 0]), tries=2))
        with pytest.raises(RequestRefused):
            cluster.run(patiently(partial(_answers, [ResponseCode.NO_PERMISSION, 0])))


def test_what_only_shares_a_keys_hash_is_left_out(tmp_path: Path) -> None:
    with filled(tmp_path) as (broker, cluster):
        store = broker.broker.parts.local
        for key in ("Aa", "BB", "Aa", "other"):  # "Aa" and "BB" have one hash in Java.
            store.append(Message("hashed", key.encode(), keys=[key], properties={"UNIQ_KEY": f"id-{key}"}))
        store.dispatch_now()

        def bodies(key: str, **options: Any) -> list[bytes]:
            found = cluster.run(find_by_key(cluster.client, broker.broker.address, "hashed", key, **options))
            return [message.body for message in found]

        assert bodies("Aa") == [b"Aa", b"Aa"]
        assert bodies("BB") == [b"BB"]
        assert bodies("id-Aa", unique=True) == [b"Aa", b"Aa"]
        assert bodies("id-BB", unique=True) == [b"BB"]
        assert bodies("Aa", unique=True) == []
        assert bodies("none") == []
