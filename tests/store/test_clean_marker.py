"""The clean marker: what is written comes back, and anything else is as if there were none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.simulated_files import SimulatedFileAccess
from small_store import power_cut
from tiermq.store.clean_marker import NAME, CleanMarker, QueueEnd, read_marker, remove_marker, write_marker

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


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[]", b"1", b"null", b"\xff", b'{"version":1}',
        b'{"version":2,"log_end":1,"checkpoint_hex":"","queues":[]}',
        b'{"version":1,"log_end":1,"checkpoint_hex":"","queues":[{}]}',
        b'{"version":1,"log_end":1,"checkpoint_hex":"","queues":[1]}',
        b'{"version":1,"log_end":"1","checkpoint_hex":"","queues":[]}',
        b'{"version":1,"log_end":1,"checkpoint_hex":5,"queues":[]}',
        b'{"version":1,"log_end":1,"checkpoint_hex":"","queues":[],"more":1}',
    ],
)  # fmt: skip
def test_anything_else_is_no_marker(data: bytes) -> None:
    assert CleanMarker.decode(data) is None


@given(st.binary(max_size=60))
def test_no_bytes_make_the_reader_fail(data: bytes) -> None:
    assert CleanMarker.decode(data) is None or data.startswith(b"{")


@given(
    st.dictionaries(
        st.sampled_from(["version", "log_end", "checkpoint_hex", "queues"]),
        st.none() | st.integers() | st.text() | st.lists(st.integers()),
    )
)
def test_no_json_makes_the_reader_fail(fields: dict[str, object]) -> None:
    found = CleanMarker.decode(json.dumps({"version": 1, **fields}).encode())
    assert found is None or (type(found.log_end), type(found.checkpoint_hex)) == (int, str)


def test_the_name_is_not_one_of_rocketmq_s() -> None:
    assert NAME == "tiermq.clean"
