"""The byte format of the HA stream under a controller."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import ReplicationError
from tiermq.replication.auto_switch_stream import (
    REPORT,
    TRANSFER,
    Answer,
    Handshake,
    MasterFrames,
    Transfer,
    decode_slave,
    transfer_header,
)
from tiermq.replication.epoch_file import EpochEntry
from tiermq.replication.ha_stream import BODY_BYTES_MAX


def taken(frames: MasterFrames, data: bytes) -> list[object]:
    frames.free()[: len(data)] = data
    return [
        each._replace(body=memoryview(bytes(each.body))) if isinstance(each, Transfer) else each
        for each in frames.received(len(data))
    ]


def test_handshake_answer_report_and_frames_are_those_of_a_running_rocketmq() -> None:
    assert Handshake(False, False, 2).encode().hex(" ", 4) == "00000001 00000000 00000000 00000002"
    answer = Answer(0x291, (EpochEntry(1, 0),))
    assert answer.encode().hex() == "000000010000000c000000000000029100000001" + "000000010000000000000000"
    assert REPORT.pack(2, 0).hex() == "000000020000000000000000"
    entry = EpochEntry(1, 0)
    assert (
        transfer_header(0, 657, entry, 657).hex() == "00000002"
        "00000291"
        "0000000000000000"
        "00000001"
        "0000000000000000"
        "0000000000000291"
    )
    assert (
        transfer_header(657, 0, entry, 657).hex() == "00000002"
        "00000000"
        "0000000000000291"
        "00000001"
        "0000000000000000"
        "0000000000000291"
    )


offsets = st.integers(-1, 2**60)


@st.composite
def answers_of_a_master(draw: st.DrawFn) -> Answer:
    """Epochs rise, starts do not fall, and the log reaches up to the last one."""
    epochs = sorted(draw(st.sets(st.integers(1, 2**30), max_size=4)))
    starts = sorted(draw(st.lists(st.integers(0, 2**60), min_size=len(epochs), max_size=len(epochs))))
    end = draw(st.integers(starts[-1] if starts else 0, 2**61))
    return Answer(end, tuple(map(EpochEntry, epochs, starts)))


answers = answers_of_a_master()
transfers = st.builds(
    Transfer, offsets, st.integers(-1, 2**30), offsets, offsets, st.binary(max_size=40).map(memoryview)
)


def encoded(frame: Answer | Transfer) -> bytes:
    if isinstance(frame, Answer):
        return frame.encode()
    entry = EpochEntry(frame.epoch, frame.epoch_start)
    return transfer_header(frame.offset, len(frame.body), entry, frame.confirm) + frame.body


@given(st.lists(answers | transfers, max_size=8), st.lists(st.integers(1, 40)))
def test_frames_come_out_whole_however_the_stream_is_cut(sent: list[Answer | Transfer], cuts: list[int]) -> None:
    stream = b"".join(map(encoded, sent))
    frames, at = MasterFrames(), 0
    found: list[object] = []
    for cut in [*cuts, len(stream)]:
        found += taken(frames, stream[at : at + cut])
        at += cut
    assert found == sent


handshakes = st.builds(Handshake, st.booleans(), st.booleans(), st.integers(0, 2**60))


@given(st.lists(handshakes | st.integers(0, 2**60), max_size=8), st.lists(st.integers(1, 20)))
def test_what_a_slave_sends_comes_out_whole_however_it_is_cut(sent: list[Handshake | int], cuts: list[int]) -> None:
    stream = b"".join(each.encode() if isinstance(each, Handshake) else REPORT.pack(2, each) for each in sent)
    found: list[Handshake | int] = []
    rest, at = b"", 0
    for cut in [*cuts, len(stream)]:
        more, rest = decode_slave(rest + stream[at : at + cut])
        found += more
        at += cut
    assert (found, rest) == (sent, b"")


@pytest.mark.parametrize(
    "header",
    [
        TRANSFER.pack(2, -1, 0, 1, 0, 0),
        TRANSFER.pack(2, BODY_BYTES_MAX + 1, 0, 1, 0, 0),
        TRANSFER.pack(3, 0, 0, 1, 0, 0),
        TRANSFER.pack(1, 13, 0, 1, 0, 0),
        bytes(12),
    ],
)
def test_a_frame_that_no_master_sends_is_refused_in_words(header: bytes) -> None:
    with pytest.raises(ReplicationError, match="the peer is no master, or one without a controller"):
        taken(MasterFrames(), header)


@pytest.mark.parametrize(
    ("log_end", "entries"),
    [
        (100, ((2, 0), (1, 50))),
        (100, ((1, 0), (1, 50))),
        (100, ((1, 50), (2, 0))),
        (100, ((1, -1), (2, 50))),
        (0, ((1, 0), (2, 50))),
    ],
)
def test_epochs_that_no_log_has_are_refused_before_a_slave_cuts_by_them(
    log_end: int, entries: tuple[tuple[int, int], ...]
) -> None:
    answer = Answer(log_end, tuple(EpochEntry(*each) for each in entries))
    with pytest.raises(ReplicationError, match="nothing is cut by them"):
        taken(MasterFrames(), answer.encode())


def test_a_report_of_the_default_dialect_is_refused_in_words() -> None:
    with pytest.raises(ReplicationError, match="the peer speaks the default HA protocol"):
        decode_slave(bytes(16))
