"""`python3 dev.py prove` at the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import campaign.__main__ as command
from campaign.part import Finding, Outcome
from made_part import Made


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Made]:
    def bad(seed: int, _scratch: Path) -> Outcome:
        return Outcome(findings=[Finding("all is well", f"{seed} is not", seed)])

    made = {"good": Made("good", 3), "bad": Made("bad", 1, bad), "absent": Made("absent", 1)}
    monkeypatch.setattr(made["absent"], "missing", lambda: "no such disk")
    monkeypatch.setattr(command, "all_parts", lambda: list(made.values()))
    return made


def prove(tmp_path: Path, *words: Any) -> Result:
    return CliRunner().invoke(command.prove, ["--dir", str(tmp_path), *map(str, words)])


def test_promises_that_held_end_with_0_and_a_table(tmp_path: Path, parts: dict[str, Made]) -> None:
    reported = prove(tmp_path, "--part", "good", "--seed", 5)
    assert reported.exit_code == 0, reported.output
    assert "| 3 |" in reported.stdout
    assert len(parts["good"].seeds) == 3


def test_a_finding_ends_with_1_and_what_is_missing_is_said(tmp_path: Path, parts: dict[str, Made]) -> None:
    reported = prove(tmp_path, "--rounds", 2, "--json")
    assert reported.exit_code == 1
    found = json.loads(reported.stdout)
    assert found["not_run"] == {"absent": "no such disk"}
    assert [len(part["findings"]) for part in found["parts"]] == [0, 2]
    assert len(parts["bad"].seeds) == 2


def test_a_campaign_is_gone_on_with_by_its_own_seed(tmp_path: Path, parts: dict[str, Made]) -> None:
    prove(tmp_path, "--part", "good", "--rounds", 1, "--seed", 5)
    reported = prove(tmp_path, "--part", "good", "--resume")
    assert reported.exit_code == 0, reported.output
    assert "going on after 1 rounds" in reported.stderr
    assert len(set(parts["good"].seeds)) == 3


def test_a_round_is_repeated_by_its_seed(tmp_path: Path, parts: dict[str, Made]) -> None:
    reported = prove(tmp_path, "--part", "bad", "--round", 42)
    assert reported.exit_code == 1
    assert "42 is not" in reported.stdout
    assert parts["bad"].seeds == [42]
    assert prove(tmp_path, "--part", "good", "--round", 42).exit_code == 0


def test_wrong_arguments_are_reported(tmp_path: Path, parts: dict[str, Made]) -> None:
    unknown = prove(tmp_path, "--part", "nonsense")
    assert unknown.exit_code == 2
    assert "there are good, bad, absent" in unknown.stderr
    assert prove(tmp_path, "--round", 1).exit_code == 2
    assert prove(tmp_path, "--part", "absent", "--round", 1).exit_code == 1
    assert all(part.seeds == [] for part in parts.values())


def test_the_parts_are_listed_with_what_they_need(tmp_path: Path, parts: dict[str, Made]) -> None:
    reported = prove(tmp_path, "--list")
    assert reported.exit_code == 0
    assert "absent" in reported.stdout
    assert "no such disk" in reported.stdout
    assert parts["good"].seeds == []
