"""MemoryDriver keeps the contract."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tier.driver.conformance import DriverConformance, Place, fresh_segment
from tiermq.tier.driver.memory import MemoryDriver, forget

_names = (f"conformance-{number}" for number in itertools.count())


@pytest.fixture
def place() -> Iterator[Place]:
    name = next(_names)
    yield Place(lambda: MemoryDriver(name))
    forget(name)


class TestMemoryDriver(DriverConformance):
    pass


def test_a_driver_without_a_name_shares_nothing() -> None:
    one, other, key = MemoryDriver(), MemoryDriver(), fresh_segment()
    one.write(key, 0, [b"mine"])
    assert other.size(key) == 0


def test_what_is_forgotten_is_not_there_for_the_next_one() -> None:
    key = fresh_segment()
    MemoryDriver("to forget").write(key, 0, [b"x"])
    assert MemoryDriver("to forget").size(key) == 1
    forget("to forget")
    assert MemoryDriver("to forget").size(key) == 0
    forget("to forget")
