"""The file that remembers which dead letters were sent again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiermq.cli.dlq_record import ResentRecord
from tiermq.errors import StoreDamaged


def test_letters_are_remembered_by_group(tmp_path: Path) -> None:
    path = tmp_path / "resent"
    ResentRecord(path, "audit").add(["a-0-1", "a-0-2"])
    ResentRecord(path, "bills").add(["a-0-3"])
    ResentRecord(path, "audit").add(["a-0-2"])
    again = ResentRecord(path, "audit")
    assert "a-0-1" in again
    assert "a-0-3" not in again
    assert len(path.read_text().splitlines()) == 3


def test_a_torn_line_is_cut_off_and_the_others_count(tmp_path: Path) -> None:
    path = tmp_path / "resent"
    ResentRecord(path, "audit").add(["a-0-1", "a-0-2"])
    path.write_bytes(path.read_bytes()[:-5])
    record = ResentRecord(path, "audit")
    assert "a-0-1" in record
    assert "a-0-2" not in record
    record.add(["a-0-2"])
    assert "a-0-2" in ResentRecord(path, "audit")


def test_another_file_is_not_taken_for_a_record(tmp_path: Path) -> None:
    path = tmp_path / "resent"
    path.write_text("dear diary\n")
    with pytest.raises(StoreDamaged, match="name another file"):
        ResentRecord(path, "audit")
    assert path.read_text() == "dear diary\n"
