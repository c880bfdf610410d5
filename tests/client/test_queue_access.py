"""One queue over the wire: bounds, times, records; patience with a broker that is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.wire_world import EACH, filled
from tiermq.client.queue_access import QueueAccess, patiently
from tiermq.errors import PeerGone, RequestRefused
from tiermq.message.record import decode_records
from tiermq.remoting.codes import ResponseCode


def test_a_queue_tells_its_bounds_times_and_records(tmp_path: Path) -> None:
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
        assert broker.broker.parts.offsets.topics_of("TOOLS_CONSUMER") in ([], set(), ())


def test_a_broker_that_starts_again_is_waited_for(tmp_path: Path) -> None:
    with filled(tmp_path) as (broker, cluster):
        place = cluster.run(cluster.client.route("orders")).readable[0]
        queue = QueueAccess(cluster.client, "orders", place)
        assert cluster.run(queue.bounds()) == (0, EACH)
        broker.restart()
        assert cluster.run(queue.bounds()) == (0, EACH)


async def _answers(codes: list[int]) -> str:
    code = codes.pop(0)
    if code < 0:
        raise PeerGone("gone")
    if code:
        raise RequestRefused("no", code)
    return "yes"


def test_busy_and_gone_are_asked_again_and_refusals_are_not(tmp_path: Path) -> None:
    with filled(tmp_path) as (_, cluster):
        assert cluster.run(patiently(lambda codes=[ResponseCode.SYSTEM_BUSY, -1, 0]: _answers(codes))) == "yes"
        with pytest.raises(PeerGone):
            cluster.run(patiently(lambda codes=[-1, -1, 0]: _answers(codes), tries=2))
        with pytest.raises(RequestRefused):
            cluster.run(patiently(lambda codes=[ResponseCode.NO_PERMISSION, 0]: _answers(codes)))
