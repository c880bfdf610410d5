"""The campaign's report: figures for people and programs, and between the marks of the guarantees."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from campaign.part import Finding, Outcome
from campaign.report import BEGIN, END, as_dict, as_markdown, publish
from campaign.runner import Done, Total
from made_part import Made


def reported(*findings: Finding) -> dict[str, object]:
    total = Total()
    total.add(
        Done("kills", 11, 1800.0, Outcome(Counter(messages_checked=12_345, kills=7, lost=0), peaks={"memory_mb": 61.5}))
    )
    if findings:
        total.add(Done("kills", 12, 1800.0, Outcome(findings=list(findings)), "kills-12"))
    return as_dict([Made("kills", 2)], {"kills": total}, 99, {"cuts": "no loop device"})


def test_the_report_has_every_figure_and_what_was_not_run() -> None:
    text = as_markdown(reported())
    assert "| made for a test (`kills`) | 1 | 0.50 | 7 | 12,345 | 0 |" in text
    assert "| all | 1 | 0.50 | 7 | 12,345 | 0 |" in text
    assert "- `kills`: 7 kills, 12,345 messages checked, at most 62 memory mb." in text
    assert "--seed 99" in text
    assert "Not run: `cuts`, no loop device." in text
    assert "Nothing." in text


def test_a_finding_is_reported_with_the_command_that_repeats_it() -> None:
    text = as_markdown(reported(Finding("nothing is lost", "offset 3 is gone", 12, ("put a", "crash"))))
    assert "python3 dev.py prove --part kills --round 12" in text
    assert "offset 3 is gone\nput a\ncrash" in text
    assert "| all | 2 | 1.00 | 7 | 12,345 | 1 |" in text


def test_published_figures_replace_those_between_the_marks(tmp_path: Path) -> None:
    guarantees = tmp_path / "guarantees.md"
    guarantees.write_text(f"before\n{BEGIN}old figures{END}\nafter\n")
    publish(reported(), tmp_path / "campaign", guarantees)
    text = guarantees.read_text()
    assert "old figures" not in text
    assert "| 7 | 12,345 | 0 |" in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert json.loads((tmp_path / "campaign" / "last.json").read_text())["seed"] == 99
    assert (tmp_path / "campaign" / "last.md").read_text().startswith("# The last campaign")


def test_guarantees_name_where_a_broken_promise_is_explained(tmp_path: Path) -> None:
    guarantees = tmp_path / "guarantees.md"
    guarantees.write_text(f"{BEGIN}{END}")
    publish(reported(), tmp_path / "campaign", guarantees)
    assert "found.md" not in guarantees.read_text()
    publish(reported(Finding("nothing is lost", "offset 3 is gone", 12, ())), tmp_path / "campaign", guarantees)
    assert "Promises broken, 1: [campaign/last.md](campaign/last.md#found) has what was seen" in guarantees.read_text()


def test_rounds_of_several_seeds_are_summed_and_each_is_named_with_its_commit(tmp_path: Path) -> None:
    guarantees = tmp_path / "guarantees.md"
    guarantees.write_text(f"{BEGIN}{END}")
    publish(reported(), tmp_path / "campaign", guarantees)
    total = Total()
    total.add(Done("kills", 12, 1800.0, Outcome(Counter(messages_checked=5, kills=1), peaks={"memory_mb": 70.0})))
    more = as_dict([Made("kills", 2)], {"kills": total}, 100, {})
    publish(more, tmp_path / "campaign", guarantees, add=True)
    text = (tmp_path / "campaign" / "last.md").read_text()
    assert "(`kills`, seeds 99, 100) | 2 | 1.00 | 8 | 12,350 | 0 |" in text
    for seed in (99, 100):
        assert f"1 rounds of seed {seed} on {more['parts'][0]['commit']}." in text
    assert "at most 70 memory mb" in text
    [part] = json.loads((tmp_path / "campaign" / "last.json").read_text())["parts"]
    assert part["commit"] == more["parts"][0]["commit"]
    other = as_dict([Made("kills", 2)], {"kills": total}, 101, {})
    other["parts"][0]["commit"] = "abc"
    publish(other, tmp_path / "campaign", guarantees, add=True)
    [part] = json.loads((tmp_path / "campaign" / "last.json").read_text())["parts"]
    assert (part["commit"], part["runs"][-1]["commit"]) == ("", "abc"), "no commit is named for the work of several"


def test_a_campaign_of_some_parts_leaves_the_published_figures_of_others(tmp_path: Path) -> None:
    guarantees = tmp_path / "guarantees.md"
    guarantees.write_text(f"{BEGIN}{END}")
    publish(reported(), tmp_path / "campaign", guarantees)
    total = Total()
    total.add(Done("fleet", 5, 3600.0, Outcome(Counter(messages_checked=10, kills=3))))
    publish(as_dict([Made("fleet", 1)], {"fleet": total}, 7, {}), tmp_path / "campaign", guarantees)
    text = (tmp_path / "campaign" / "last.md").read_text()
    assert "--seed 99" in text
    assert "(`kills`) | 1 | 0.50 | 7 | 12,345 | 0 |" in text
    assert "(`fleet`, seed 7) | 1 | 1.00 | 3 | 10 | 0 |" in text
    assert "| all | 2 | 1.50 | 10 | 12,355 | 0 |" in text
    assert "Not run: `cuts`" in text


def test_guarantees_without_marks_are_left_alone(tmp_path: Path) -> None:
    guarantees = tmp_path / "guarantees.md"
    guarantees.write_text("no marks")
    with pytest.raises(ValueError, match=r"guarantees\.md: expected"):
        publish(reported(), tmp_path / "campaign", guarantees)
    assert guarantees.read_text() == "no marks"
