"""How far timers were pulled is remembered by the store that pulled them, and by no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.delivery.far.pulled_record import PulledRecord, decode_pulled, encode_pulled
from tiermq.errors import StoreDamaged
from tiermq.files.os_file_access import OsFileAccess


def record(path: Path, place: str = "memory://x/timers") -> PulledRecord:
    return PulledRecord(str(path), place, OsFileAccess())


def test_a_time_is_remembered_over_a_restart(tmp_path: Path) -> None:
    assert record(tmp_path).until_ms == 0
    record(tmp_path).write(17)
    record(tmp_path).write(42)
    assert record(tmp_path).until_ms == 42


def test_the_file_of_another_tier_says_nothing(tmp_path: Path) -> None:
    record(tmp_path, "s3://one/timers").write(17)
    assert record(tmp_path, "s3://two/timers").until_ms == 0


def test_a_torn_file_is_replaced_by_the_one_before(tmp_path: Path) -> None:
    record(tmp_path).write(17)
    record(tmp_path).write(42)
    (tmp_path / "farTimers.json").write_bytes(b"{")
    assert record(tmp_path).until_ms == 17


@given(st.text(max_size=30), st.integers(0, 2**63))
def test_a_pulled_time_comes_back_as_it_was(place: str, until_ms: int) -> None:
    assert decode_pulled(encode_pulled(place, until_ms)) == (place, until_ms)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"place":"x","pulledUntilMs":-1}', b'{"place":1,"pulledUntilMs":1}']
)
def test_other_bytes_are_no_pulled_time(data: bytes) -> None:
    with pytest.raises(StoreDamaged):
        decode_pulled(data)
