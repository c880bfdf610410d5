"""What the commands of `tiermq tier` share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiermq.cli.tier_options import EXIT_NO_TIER, broker_metadata, metadata_path, new_metadata, opened
from tiermq.errors import StoreError, TierUnavailable


def test_whatever_keeps_a_tier_from_being_read_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, opened("memory://x"):
        raise TierUnavailable("no answer")
    assert ended.value.code == EXIT_NO_TIER
    assert "no answer" in capsys.readouterr().err


def test_what_a_broker_knows_must_be_there_already_and_is_not_made_by_looking(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="found no such file"), broker_metadata(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
    with broker_metadata(None) as nothing:
        assert nothing is None


def test_new_metadata_lies_where_a_broker_looks_for_it(tmp_path: Path) -> None:
    with new_metadata(tmp_path / "store") as made:
        assert made.is_empty()
    assert metadata_path(tmp_path / "store").is_file()
    with broker_metadata(tmp_path / "store") as found:
        assert found is not None
