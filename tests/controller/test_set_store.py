"""The state of broker sets in a bucket: whole, checked, and changed by one controller at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.controller.broker_set import BrokerSet, Member, Outcome, apply_id
from tiermq.controller.set_store import CHANGE_TRIES, SetStore, decode_set, encode_set, object_name
from tiermq.errors import FutureManifest, RequestRefused, TierUnavailable
from tiermq.remoting.codes import ResponseCode
from tiermq.tier.driver.contract import ForwardingDriver, TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.document import CorruptManifest, seal_document

STATE = BrokerSet("b", "C", {1: Member("x:1", "x:1;5"), 2: Member("y:1", "y:1;6")}, 3, 1, 4, frozenset({1, 2}), 7)


def grow(by: int) -> Callable[[BrokerSet | None], Outcome]:
    def decide(state: BrokerSet | None) -> Outcome:
        before = state or STATE
        return Outcome(0, replace(before, set_epoch=before.set_epoch + by))

    return decide


@given(master=st.sampled_from([None, 1, 2]), epoch=st.integers(0, 1 << 31), sequence=st.integers(0, 1 << 40))
def test_what_is_stored_is_read_back(master: int | None, epoch: int, sequence: int) -> None:
    state = replace(STATE, master=master, master_epoch=epoch)
    assert decode_set(encode_set(state, sequence, "one"), "name") == (state, sequence)


def test_a_damaged_or_contradictory_object_is_refused_and_not_overwritten(tmp_path: Path) -> None:
    driver = PosixDriver(tmp_path)
    whole = encode_set(STATE, 1, "one")
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        try:
            assert decode_set(bytes(damaged), "name") == (STATE, 1)
        except (CorruptManifest, FutureManifest):
            continue
    foreign = encode_set(replace(STATE, in_sync=frozenset({1, 9})), 1, "one")
    for bad in (b"{}", foreign, encode_set(replace(STATE, master=2, in_sync=frozenset({1})), 1, "one"), whole[:-1]):
        driver.put_object(object_name("b"), bad)
        with pytest.raises(RequestRefused, match="cannot use its state"):
            SetStore(driver, "one").change("b", grow(1))
        stored = driver.get_object(object_name("b"))
        assert stored is not None
        assert stored.data == bad


def test_a_state_of_a_newer_version_is_neither_read_nor_overwritten() -> None:
    driver = MemoryDriver("newer")
    driver.put_object(object_name("b"), seal_document({"anything": 1}, 2))
    with pytest.raises(RequestRefused, match="newer TierMQ"):
        SetStore(driver, "one").read("b")


def test_a_controller_that_was_suspended_between_read_and_write_decides_again() -> None:
    driver = MemoryDriver("suspended")
    first, second = SetStore(driver, "one"), SetStore(driver, "two")
    first.change("b", grow(1))
    asked: list[int] = []

    def slow(state: BrokerSet | None) -> Outcome:
        assert state is not None
        asked.append(state.set_epoch)
        if len(asked) == 1:
            second.change("b", grow(10))
        return Outcome(0, replace(state, set_epoch=state.set_epoch + 1))

    outcome = first.change("b", slow)
    assert asked == [STATE.set_epoch + 1, STATE.set_epoch + 11]
    assert outcome.state == second.read("b") == replace(STATE, set_epoch=STATE.set_epoch + 12)


@pytest.mark.parametrize("kind", ["directory", "memory", "bucket"])
def test_two_controllers_that_write_at_once_lose_no_change(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    drivers: list[TierDriver]
    if kind == "bucket":
        server = request.getfixturevalue("seaweedfs")
        server.create_bucket("controllers")
        drivers = [open_driver("s3://controllers/here", environment=server.environment) for _ in range(2)]
    else:
        drivers = [PosixDriver(tmp_path) if kind == "directory" else MemoryDriver("at once") for _ in range(2)]
    stores = [SetStore(driver, f"controller {number}") for number, driver in enumerate(drivers)]
    failures: list[BaseException] = []
    rounds = 20

    def write(store: SetStore) -> None:
        for _ in range(rounds):
            while True:
                try:
                    store.change("b", grow(1))
                    break
                except RequestRefused as error:
                    if error.code != ResponseCode.SYSTEM_BUSY:
                        failures.append(error)
                        return

    threads = [threading.Thread(target=write, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    state = stores[0].read("b")
    assert state is not None
    assert state.set_epoch == STATE.set_epoch + 2 * rounds


def test_of_two_controllers_that_decide_alike_at_once_one_decides_again() -> None:
    """A put of bytes that are stored already succeeds, so equal states of two writers have different bytes."""
    driver = MemoryDriver("alike")
    first, second = SetStore(driver, "one"), SetStore(driver, "two")
    asked: list[BrokerSet | None] = []

    def overtaken(state: BrokerSet | None) -> Outcome:
        asked.append(state)
        if state is None:
            second.change("b", lambda _state: Outcome(0, STATE))
        return Outcome(0, STATE)

    first.change("b", overtaken)
    assert asked == [None, STATE]


def test_a_set_that_changes_all_the_time_is_given_up_as_busy() -> None:
    driver = MemoryDriver("busy")
    first, second = SetStore(driver, "one"), SetStore(driver, "two")
    tries: list[int] = []

    def overtaken(state: BrokerSet | None) -> Outcome:
        tries.append(1)
        second.change("b", grow(1))
        return Outcome(0, replace(state or STATE, next_id=100))

    with pytest.raises(RequestRefused) as refused:
        first.change("b", overtaken)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert len(tries) == CHANGE_TRIES


def test_a_bucket_that_is_away_refuses_requests_and_changes_nothing() -> None:
    class Away(ForwardingDriver):
        def put_object(self, *_arguments: object, **_named: object) -> str:
            raise TierUnavailable("it is away")

    inner = MemoryDriver("away")
    with pytest.raises(RequestRefused, match="it is away"):
        SetStore(Away(inner), "one").change("b", lambda state: apply_id(state, "C", "b", 1, "x;1"))
    assert inner.get_object(object_name("b")) is None


@pytest.mark.parametrize("name", ["", "a/b", "../b", "x" * 128, "a\0b"])
def test_a_broker_name_that_cannot_name_an_object_is_refused(name: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        SetStore(MemoryDriver("names"), "one").read(name)
    assert refused.value.code == ResponseCode.CONTROLLER_INVALID_REQUEST
