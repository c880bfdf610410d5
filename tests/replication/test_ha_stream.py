"""The byte format of the HA stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import ReplicationError
from tiermq.replication.ha_stream import BODY_BYTES_MAX, CONFIRM_SIZE, HEADER, HELLO, REPORT, FrameBuffer

FRAMES = st.tuples(st.integers(0, 2**60), st.none() | st.binary(max_size=50))


def taken(frames: FrameBuffer, data: bytes) -> list[tuple[int, bytes | None]]:
    frames.free()[: len(data)] = data
    return [(offset, None if body is None else bytes(body)) for offset, body in frames.received(len(data))]


def encoded(offset: int, body: bytes | None) -> bytes:
    return HEADER.pack(offset, CONFIRM_SIZE) if body is None else HEADER.pack(offset, len(body)) + body


def test_reports_and_headers_are_those_of_a_running_rocketmq() -> None:
    assert REPORT.pack(0).hex() == "0000000000000000"
    assert HEADER.pack(0, 657).hex() == "000000000000000000000291"
    assert HEADER.pack(0x88E, 0).hex() == "000000000000088e00000000"


def test_what_only_brokers_of_tiermq_say_is_fixed() -> None:
    assert REPORT.pack(HELLO).hex() == "f" * 16, "RocketMQ's masters take -1 for a slave that has not asked yet"
    assert HEADER.pack(0x88E, CONFIRM_SIZE).hex() == "000000000000088effffffff"


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(1, 40)))
def test_frames_come_out_whole_however_the_stream_is_cut(sent: list[tuple[int, bytes | None]], cuts: list[int]) -> None:
    stream = b"".join(encoded(offset, body) for offset, body in sent)
    frames, at = FrameBuffer(), 0
    found: list[tuple[int, bytes | None]] = []
    for cut in [*cuts, len(stream)]:
        found += taken(frames, stream[at : at + cut])
        at += cut
    assert found == sent


def test_a_buffer_that_is_nearly_full_keeps_the_begun_frame() -> None:
    frames, body = FrameBuffer(), bytes(range(256)) * 16_000
    stream = (HEADER.pack(7, len(body)) + body) * 3
    found: list[tuple[int, bytes | None]] = []
    at = 0
    while at < len(stream):
        step = min(len(stream) - at, len(frames.free()), 1_000_003)
        found += taken(frames, stream[at : at + step])
        at += step
    assert found == [(7, body)] * 3


@pytest.mark.parametrize(
    "header", [HEADER.pack(0, -2), HEADER.pack(-1, -1), HEADER.pack(0, BODY_BYTES_MAX + 1), HEADER.pack(-1, 0)]
)
def test_a_frame_that_no_master_sends_is_refused_in_words(header: bytes) -> None:
    with pytest.raises(ReplicationError, match="the peer is no master"):
        taken(FrameBuffer(), header)
