"""The clean marker: what is written comes back, and anything else is as if there were none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.simulated_files import SimulatedFileAccess
from small_store import power_cut
from tiermq.store.checkpoint import (
    CLEAN_MARKER,
    CLEAN_MARKER_VERSION,
    CleanMarker,
    QueueEnd,
    read_marker,
    remove_marker,
    with_checksum,
    write_marker,
)

MARKER = CleanMarker(12345, "00ff", [QueueEnd("T", 3, "ConsumeQueue", 1, 9, 777)])


def test_a_marker_comes_back_as_it_was() -> None:
    access = SimulatedFileAccess()
    assert read_marker(access, "/store") is None
    write_marker(access, "/store", MARKER)
    assert read_marker(access, "/store") == MARKER
    assert read_marker(power_cut(access), "/store") == MARKER


def test_a_removed_marker_stays_removed_over_a_power_cut() -> None:
    access = SimulatedFileAccess()
    write_marker(access, "/store", MARKER)
    remove_marker(access, "/store")
    assert read_marker(access, "/store") is None
    assert read_marker(power_cut(access), "/store") is None
    remove_marker(access, "/store")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"1", b"null", b"\xff", b'{"version":2}'])
def test_anything_else_is_no_marker(data: bytes) -> None:
    assert CleanMarker.decode(data) is None


SOUND = {"version": CLEAN_MARKER_VERSION, "log_end": 1, "checkpoint_hex": "", "queues": []}


@pytest.mark.parametrize(
    "wrong",
    [{"version": 1}, {"queues": [{}]}, {"queues": [1]}, {"log_end": "1"}, {"checkpoint_hex": 5}, {"more": 1}],
)
def test_fields_that_are_not_those_of_a_marker_are_none(wrong: dict[str, object]) -> None:
    assert CleanMarker.decode(with_checksum(SOUND)) is not None
    assert CleanMarker.decode(with_checksum({**SOUND, **wrong})) is None
    assert CleanMarker.decode(json.dumps(SOUND).encode()) is None, "it has no checksum"


def test_no_bit_of_a_marker_can_go_bad_unnoticed() -> None:
    """A digit of an end or a minimum that went bad once hid a message."""
    data = MARKER.encode()
    for at in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[at // 8] ^= 1 << at % 8
        assert CleanMarker.decode(bytes(damaged)) is None


@given(st.binary(max_size=60))
def test_no_bytes_make_the_reader_fail(data: bytes) -> None:
    assert CleanMarker.decode(data) is None


@given(
    st.dictionaries(
        st.sampled_from(["version", "log_end", "checkpoint_hex", "queues"]),
        st.none() | st.integers() | st.text() | st.lists(st.integers()),
    )
)
def test_no_json_makes_the_reader_fail(fields: dict[str, object]) -> None:
    found = CleanMarker.decode(with_checksum({"version": CLEAN_MARKER_VERSION, **fields}))
    assert found is None or (type(found.log_end), type(found.checkpoint_hex)) == (int, str)


def test_the_name_is_not_one_of_rocketmq_s() -> None:
    assert CLEAN_MARKER == "tiermq.clean"
