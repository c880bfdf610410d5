"""The check on a second thread ends where one scan on one thread ends, whatever is damaged and however it is cut."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tiermq.commitlog import recovery
from tiermq.commitlog.recovery import CheckAhead, LogEnd, first_torn_record, sound_below, walk_log
from tiermq.files.mapped_file import MappedFile
from tiermq.kernel import Stop, WriteCursor, scan
from tiermq.message.record import encode_record

SIZE = 16 * 1024
PAGE = 512
BLANK = (64).to_bytes(4, "big") + (0xCBD43194).to_bytes(4, "big")


def log_of(seed: int, limit: int = SIZE) -> tuple[bytearray, list[int]]:
    """The bytes of a log file with records of many sizes up to `limit`, and where each of them begins."""
    source = random.Random(seed)
    data = bytearray()
    starts: list[int] = []
    while True:
        body = source.randbytes(source.choice([0, 1, 90, 400, 1500, 3000]))
        properties = "name\x01" + "v" * source.choice([1, 40, 700]) + "\x02"
        record = encode_record(
            topic="T", body=body, physical_offset=len(data), store_timestamp_ms=1, properties=properties.encode()
        )
        if len(data) + len(record) + len(BLANK) > limit:
            return data, starts
        starts.append(len(data))
        data += record


def file_of(data: bytes | bytearray) -> MappedFile:
    access = SimulatedFileAccess()
    region = access.create("/log/00000000000000000000", SIZE)
    region.reserve(0, SIZE)
    region.buffer[: len(data)] = data  # type: ignore[index]
    return MappedFile.load(access, region.path, SIZE, clock=ManualClock())


def checked(file: MappedFile, step_bytes: int) -> tuple[int, int, Stop]:
    with CheckAhead(file, step_bytes) as ahead:
        known = list(ahead)
        assert known == sorted(set(known))
        assert not known or known[-1] == ahead.position
        return ahead.sound, ahead.position, ahead.stop


def scanned(file: MappedFile) -> tuple[int, int, Stop]:
    sound = sound_below(file)
    position, stop, *_ = scan(file.view, 0, sound, 1)
    return sound, position, stop


@pytest.mark.parametrize("step_bytes", [PAGE, 1024, 5 * PAGE, SIZE, 4 * SIZE])
@pytest.mark.parametrize("limit", [0, 100, SIZE // 2, SIZE])
@pytest.mark.parametrize("blank", [False, True])
def test_a_whole_file_is_checked_up_to_its_last_record(step_bytes: int, limit: int, blank: bool) -> None:
    data, _ = log_of(limit, limit)
    file = file_of(data + (BLANK if blank else b""))
    found = checked(file, step_bytes)
    assert found == scanned(file)
    assert found[1] == len(data)


@given(st.integers(0, 50), st.integers(0, SIZE - 1), st.integers(1, 255), st.sampled_from([PAGE, 2048, SIZE]))
@settings(max_examples=150, deadline=None)
def test_a_flipped_byte_ends_the_check_where_a_scan_ends(seed: int, at: int, flip: int, step_bytes: int) -> None:
    data, _ = log_of(seed)
    data = data.ljust(SIZE, b"\0")
    data[at] ^= flip
    file = file_of(data)
    assert checked(file, step_bytes) == scanned(file)


@given(st.integers(0, 50), st.lists(st.integers(0, SIZE // PAGE - 1), max_size=4), st.sampled_from([PAGE, 2048, SIZE]))
@settings(max_examples=150, deadline=None)
def test_nothing_behind_a_page_that_never_came_to_the_disk_is_called_sound(
    seed: int, pages: list[int], step_bytes: int
) -> None:
    data, _ = log_of(seed)
    for page in pages:
        data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    file = file_of(data[:SIZE])
    found = checked(file, step_bytes)
    assert found == scanned(file)
    assert all(found[1] <= page * PAGE for page in pages)


@given(st.integers(0, 20), st.lists(st.integers(0, SIZE // PAGE - 1), max_size=2), st.integers(-1, SIZE - 1))
@settings(max_examples=100, deadline=None)
def test_a_walk_behind_the_check_is_the_walk_that_checks_itself(seed: int, pages: list[int], at: int) -> None:
    data = log_of(seed)[0].ljust(SIZE, b"\0")
    for page in pages:
        data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    if at >= 0:
        data[at] ^= 0x40
    file = file_of(data)

    def walk(ahead: bool) -> tuple[LogEnd, list[int]]:
        seen: list[int] = []

        def step(view: WriteCursor, position: int, end: int, crc_mode: int = 1) -> tuple[int, Stop]:
            """As a dispatch does: one record after the other."""
            while position < end:
                one = scan(view, position, end, crc_mode)[0:3]
                seen.append(one[2])
                position = one[0]
                if one[1] is not Stop.END:
                    return position, one[1]
            return position, Stop.END

        end = walk_log(
            [file], 0, step, lambda file, start: first_torn_record(file, 0, start),
            (lambda view, position, end: step(view, position, end, 0)) if ahead else None,
        )  # fmt: skip
        return end, [sum(seen)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "CHECK_AHEAD_BYTES_MIN", 0)
        patch.setattr(recovery, "STEP_BYTES", 2048)
        assert walk(ahead=True) == walk(ahead=False)


def test_what_the_check_meets_is_raised_by_the_walker(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_file: MappedFile) -> int:
        raise OSError("no disk")

    monkeypatch.setattr(recovery, "sound_end", fail)
    with CheckAhead(file_of(b"")) as ahead, pytest.raises(OSError, match="no disk"):
        list(ahead)


def test_the_thread_ends_when_the_rest_is_not_wanted() -> None:
    data, _ = log_of(1)
    with CheckAhead(file_of(data), PAGE) as ahead:
        assert 0 < next(iter(ahead)) <= len(data)
    assert not [thread for thread in threading.enumerate() if thread.name == "check-log"]
