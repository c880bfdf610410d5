"""The timer checkpoint: RocketMQ's bytes, and how we know that it was us who wrote it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.simulated_files import SimulatedFileAccess
from tiermq.delivery.timer.timer_checkpoint import (
    COPY,
    COPY_AT,
    COPY_CRC,
    FILE_BYTES,
    MARK,
    MARK_AT,
    NO_SUM,
    TimerCheckpoint,
    TimerProgress,
    decode_progress,
    encode_copy,
    encode_progress,
)
from tiermq.errors import StoreDamaged

PATH = "/store/config/timercheck"
LONG = st.integers(0, 2**63 - 1)


def written(access: SimulatedFileAccess, progress: TimerProgress) -> None:
    checkpoint = TimerCheckpoint(access, PATH)
    checkpoint.write(progress, 1_700_000_000_000)
    checkpoint.close()


def test_a_checkpoint_has_rocketmqs_bytes() -> None:
    access = SimulatedFileAccess()
    written(access, TimerProgress(1_700_000_000_000, 520, 10, 1_000))
    data = access.read_bytes(PATH)
    assert len(data) == FILE_BYTES
    # The master's offset is the queue offset: a slave, and RocketMQ's own recovery, stop there.
    assert struct.unpack_from(">7q", data) == (1_700_000_000_000, 520, 10, 10, 0, 1_700_000_000_000, 1)


@given(st.builds(TimerProgress, LONG, LONG, LONG, st.integers(1, 2**31 - 1), LONG, LONG, LONG, LONG, LONG))
def test_a_checkpoint_of_ours_comes_back_as_it_was(progress: TimerProgress) -> None:
    values, mark = encode_progress(progress)
    unsummed = progress._replace(units_sum=NO_SUM)
    assert decode_progress(values.ljust(MARK_AT, b"\0") + mark) == unsummed
    assert decode_progress(file_of(progress)) == progress
    assert decode_progress(file_of(unsummed)) == unsummed
    assert progress.is_ours


def test_a_checkpoint_that_rocketmq_wrote_over_ours_is_not_ours() -> None:
    access = SimulatedFileAccess()
    written(access, TimerProgress(1_700_000_000_000, 520, 10, 1_000))
    data = bytearray(access.read_bytes(PATH))
    struct.pack_into(">q", data, 0, 1_700_000_001_000)
    found = decode_progress(data)
    assert not found.is_ours
    assert found.read_time_ms == 1_700_000_001_000


@pytest.mark.parametrize("at", range(56))
def test_every_damaged_byte_of_the_values_makes_a_checkpoint_not_ours(at: int) -> None:
    values, mark = encode_progress(TimerProgress(1_700_000_000_000, 520, 10, 1_000))
    data = bytearray(values.ljust(MARK_AT, b"\0") + mark)
    data[at] ^= 1
    assert not decode_progress(data).is_ours


def file_of(progress: TimerProgress) -> bytearray:
    data = bytearray(FILE_BYTES)
    values, mark = encode_progress(progress)
    copy = encode_copy(progress)
    data[: len(values)], data[MARK_AT : MARK_AT + len(mark)] = values, mark
    data[COPY_AT : COPY_AT + len(copy)] = copy
    return data


SUMMED = TimerProgress(1_700_000_000_000, 520, 10, 1_000, 1_700_000_000_500, 7, 0, 10, units_sum=2**62 + 5)


@pytest.mark.parametrize("at", [*range(56), *range(MARK_AT, MARK_AT + MARK.size)])
def test_a_bit_of_a_checkpoint_that_went_bad_is_known_from_its_copy(at: int) -> None:
    data = file_of(SUMMED)
    assert decode_progress(data) == SUMMED
    data[at] ^= 4
    assert decode_progress(data) == SUMMED


def test_a_sector_of_a_checkpoint_that_is_gone_is_known_from_its_copy() -> None:
    assert decode_progress(bytes(512) + file_of(SUMMED)[512:]) == SUMMED


@pytest.mark.parametrize("at", range(COPY_AT, COPY_AT + COPY.size + COPY_CRC.size))
def test_a_copy_that_went_bad_is_not_believed(at: int) -> None:
    data = file_of(SUMMED)
    data[at] ^= 1
    assert decode_progress(data) == SUMMED._replace(units_sum=NO_SUM)


def test_what_rocketmq_wrote_over_ours_is_believed_and_not_its_copy() -> None:
    data = file_of(SUMMED)
    later = SUMMED._replace(read_time_ms=1_700_000_004_000, timestamp_ms=1_700_000_004_211, counter=8)
    data[:56] = encode_progress(later)[0]
    assert decode_progress(data) == later._replace(precision_ms=0, units_sum=NO_SUM)


def test_a_copy_of_another_moment_says_no_sum() -> None:
    data, later = file_of(SUMMED), SUMMED._replace(log_end=572, counter=8)
    values, mark = encode_progress(later)
    data[:56], data[MARK_AT : MARK_AT + len(mark)] = values, mark
    assert decode_progress(data) == later._replace(units_sum=NO_SUM)


def test_a_checkpoint_is_durable_when_it_was_written() -> None:
    access = SimulatedFileAccess()
    written(access, TimerProgress(1_700_000_000_000, 520, 10, 1_000))
    found = TimerCheckpoint(access.crash(lambda _path, _page: False), PATH).progress
    assert (found.read_time_ms, found.log_end, found.queue_offset, found.precision_ms) == (
        1_700_000_000_000,
        520,
        10,
        1_000,
    )


def test_the_same_again_is_not_written() -> None:
    syncs: list[str] = []
    access = SimulatedFileAccess(on_call=lambda operation, _path: syncs.append(operation))
    checkpoint = TimerCheckpoint(access, PATH)
    checkpoint.write(TimerProgress(1, 2, 3, 1_000), 5)
    before = len(syncs)
    checkpoint.write(TimerProgress(1, 2, 3, 1_000), 6)
    assert len(syncs) == before
    checkpoint.write(TimerProgress(2, 2, 3, 1_000), 7)
    assert checkpoint.progress.counter == 2


def test_the_older_form_of_32_bytes_is_read() -> None:
    access = SimulatedFileAccess()
    access.make_directories("/store/config")
    access.write_bytes(PATH, struct.pack(">4q", 1_700_000_000_000, 520, 10, 10))
    found = TimerCheckpoint(access, PATH).progress
    assert (found.read_time_ms, found.log_end, found.queue_offset, found.is_ours) == (1_700_000_000_000, 520, 10, False)


def test_a_file_that_never_got_its_size_says_nothing() -> None:
    access = SimulatedFileAccess()
    access.make_directories("/store/config")
    access.write_bytes(PATH, b"")
    assert TimerCheckpoint(access, PATH).progress == TimerProgress()


def test_too_few_bytes_are_damage() -> None:
    with pytest.raises(StoreDamaged, match="at least 32 bytes, found 31"):
        decode_progress(bytes(31))
