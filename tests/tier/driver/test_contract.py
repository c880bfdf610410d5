"""The contract's own small parts, and that every driver and wrapper has every method of it."""

from __future__ import annotations

import inspect

import pytest

from servers.faulty_driver import FaultyDriver
from tier.driver.conformance import fresh_segment
from tiermq.errors import IllegalRange
from tiermq.tier.driver.contract import TierDriver, check_read, joined, past_the_end
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.object_store import ObjectStoreDriver
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.driver.retry import RetryingDriver

METHODS = [name for name, value in vars(TierDriver).items() if inspect.isfunction(value) and not name.startswith("_")]


def test_one_buffer_is_passed_on_and_several_are_joined() -> None:
    one = b"one"
    assert joined([one]) is one
    assert joined([b"a", bytearray(b"b"), memoryview(b"c")]) == b"abc"
    assert joined([memoryview(b"c")]) == b"c"
    assert joined([]) == b""


def test_bytes_given_instead_of_a_list_of_them_are_a_mistake_that_shows() -> None:
    with pytest.raises(TypeError):
        joined(b"abc")  # type: ignore[arg-type]


def test_ranges_are_checked_before_anyone_is_asked() -> None:
    key = fresh_segment()
    check_read(key, 0, 1)
    for position, length in [(-1, 1), (0, 0), (0, -1)]:
        with pytest.raises(IllegalRange, match="position >= 0 and a length > 0"):
            check_read(key, position, length)
    assert "within its 10 bytes, found 5..11" in str(past_the_end(key, 5, 6, 10))


@pytest.mark.parametrize("kind", [MemoryDriver, PosixDriver, ObjectStoreDriver, RetryingDriver, FaultyDriver])
def test_every_driver_has_every_method_with_the_same_parameters(kind: type) -> None:
    assert len(METHODS) >= 12
    for name in METHODS:
        ours = inspect.signature(getattr(kind, name)).parameters
        theirs = inspect.signature(getattr(TierDriver, name)).parameters
        assert [(p.name, p.kind, p.default) for p in ours.values()] == [
            (p.name, p.kind, p.default) for p in theirs.values()
        ], name
