"""Thresholds of what a group may read from the tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.consuming import Peer, bodies_of, on_loop, part, put, running, until
from broker.pop.pop_peer import PopPeer
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.broker.pull.cold_flow import FORGET_MS, WINDOW_MS, ColdFlow
from tiermq.broker.pull.pull_processor import PullProcessor
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.json_dialect import decode_body
from tiermq.tier.tiered_store import TieredStore

UPDATE = RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG
REMOVE = RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG
INFO = RequestCode.GET_COLD_DATA_FLOW_CTR_INFO


def test_a_group_waits_for_its_next_window_and_others_do_not(manual_clock: ManualClock) -> None:
    flow = ColdFlow(manual_clock)
    flow.thresholds["G"] = 100
    flow.gave("G", 99)
    assert flow.wait_s("G") == 0
    flow.gave("G", 1)
    flow.gave("H", 1000)
    manual_clock.advance_ms(1000)
    assert (flow.wait_s("G"), flow.wait_s("H")) == ((WINDOW_MS - 1000) / 1000, 0)
    manual_clock.advance_ms(WINDOW_MS - 1000)
    assert flow.wait_s("G") == 0


def test_groups_that_stopped_reading_are_forgotten(manual_clock: ManualClock) -> None:
    flow = ColdFlow(manual_clock)
    flow.gave("G", 5)
    assert flow.report()["runtimeTable"]["G"]["coldAcc"] == 5
    manual_clock.advance_ms(WINDOW_MS)
    assert flow.report()["runtimeTable"]["G"]["coldAcc"] == 0
    manual_clock.advance_ms(FORGET_MS)
    assert flow.report()["runtimeTable"] == {}


def cold_broker(tmp_path: Path, clock: ManualClock) -> Broker:
    """Everything that is put is read from the tier."""
    (tmp_path / "tier").mkdir()
    settings = {"tier": (tmp_path / "tier").as_uri(), "tiered_storage_level": "FORCE"}
    return running(tmp_path / "store", clock=clock, store=settings)  # type: ignore[return-value]


def test_a_pull_over_the_threshold_is_answered_in_the_next_window(tmp_path: Path, manual_clock: ManualClock) -> None:
    with cold_broker(tmp_path, manual_clock) as broker, Peer(broker) as peer:
        assert isinstance(broker.store, TieredStore)
        put(broker, "one", "two")
        assert broker.store.flush_to_tier(60)
        peer.join()
        assert peer.ask(UPDATE, b"G=10\nOTHER = 5000\n").code == 0
        assert bodies_of(peer.pull(0)) == ["one", "two"]
        reported = decode_body(peer.ask(INFO).body)
        assert reported["configTable"] == {"G": 10, "OTHER": 5000}
        assert reported["runtimeTable"]["G"]["coldAcc"] == reported["globalAcc"] > 10
        pulling = part(broker, PullProcessor)
        count = pulling.cold_count
        waiting = peer.pull_later(1)
        until(broker, lambda: pulling.cold_count == count + 1)
        assert on_loop(broker, lambda: pulling._cold_waiting) == 1
        assert not waiting.done()
        manual_clock.advance_ms(WINDOW_MS - 1)
        manual_clock.advance_ms(1)
        answer = waiting.result(60)
        assert answer.code in (0, ResponseCode.FLOW_CONTROL)
        assert bodies_of(peer.pull(1) if answer.code else answer) == ["two"]
        assert peer.ask(REMOVE, b"G").code == 0
        assert bodies_of(peer.pull(0)) == ["one", "two"]


def test_a_pop_over_the_threshold_is_refused_until_the_next_window(tmp_path: Path, manual_clock: ManualClock) -> None:
    with cold_broker(tmp_path, manual_clock) as broker, PopPeer(broker) as peer:
        assert isinstance(broker.store, TieredStore)
        on_loop(broker, broker.parts.cold_flow.thresholds.__setitem__, "G", 1)
        on_loop(broker, broker.parts.cold_flow.gave, "G", 1)
        put(broker, "cold")
        assert broker.store.flush_to_tier(60)
        manual_clock.advance_ms(1)
        on_loop(broker, broker.parts.cold_flow.gave, "G", 1)
        assert peer.pop_raw(pollTime=1000).code == ResponseCode.FLOW_CONTROL
        manual_clock.advance_ms(WINDOW_MS)
        (got,) = peer.pop(pollTime=1000)
        assert got.body == "cold"


@pytest.mark.parametrize("body", [b"G", b"G=many", b"G=-5", b"G=0", b"no good=5", b"G=1\nH=x", b"\xff=1"])
def test_a_threshold_that_cannot_be_is_refused_and_changes_nothing(tmp_path: Path, body: bytes) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        assert peer.ask(UPDATE, body).code == ResponseCode.INVALID_PARAMETER
        assert broker.parts.cold_flow.thresholds == {}
