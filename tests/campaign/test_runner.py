"""A campaign: seeds, turns, the record, what is kept, and going on after an interruption."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from campaign.part import Finding, Outcome
from campaign.runner import RECORD, Campaign, Done, seed_of
from made_part import Made


def run(campaign: Campaign, rounds: int | None = None) -> list[Done]:
    ended: list[Done] = []
    campaign.run(rounds, None, lambda _part, _seed: None, ended.append)
    return ended


def test_parts_take_turns_until_each_has_done_its_rounds(tmp_path: Path) -> None:
    first, second = Made("first", 3), Made("second", 1)
    ended = run(Campaign(tmp_path, [first, second], 7))
    assert [done.part for done in ended] == ["first", "second", "first", "first"]
    assert first.seeds == [seed_of(7, "first", number) for number in range(3)]


def test_rounds_differ_by_root_seed_part_and_number() -> None:
    seeds = {seed_of(root, part, number) for root in (1, 2) for part in ("a", "b") for number in range(50)}
    assert len(seeds) == 200


def test_totals_are_sums_and_peaks(tmp_path: Path) -> None:
    amounts = iter((3.0, 9.0, 4.0))
    part = Made("some", 3, lambda _seed, _scratch: Outcome(Counter(puts=2), peaks={"memory_mb": next(amounts)}))
    campaign = Campaign(tmp_path, [part], 1)
    run(campaign)
    total = campaign.totals["some"]
    assert (total.rounds, total.counts["puts"], total.peaks) == (3, 6, {"memory_mb": 9.0})


def test_what_a_sound_round_wrote_is_removed_and_what_a_finding_wrote_is_kept(tmp_path: Path) -> None:
    def work(seed: int, scratch: Path) -> Outcome:
        (scratch / "log").write_text("x")
        bad = seed == seed_of(1, "some", 1)
        return Outcome(findings=[Finding("all is well", "it is not", seed, ("put", "crash"))] if bad else [])

    campaign = Campaign(tmp_path, [Made("some", 3, work)], 1)
    run(campaign)
    kept = [path.name for path in tmp_path.iterdir() if path.is_dir()]
    assert kept == [f"some-{seed_of(1, 'some', 1)}"]
    (found,) = campaign.totals["some"].findings
    assert found.kept == kept[0]


def test_an_exception_is_a_finding_with_its_words(tmp_path: Path) -> None:
    def work(_seed: int, _scratch: Path) -> Outcome:
        raise ValueError("a queue has two messages at offset 7")

    (done,) = run(Campaign(tmp_path, [Made("some", 1, work)], 1))
    assert "two messages at offset 7" in done.outcome.findings[0].found


def test_a_campaign_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    whole = Made("some", 5)
    run(Campaign(tmp_path / "whole", [whole], 3))

    def interrupted(seed: int, _scratch: Path) -> Outcome:
        if seed == seed_of(3, "some", 2):
            raise KeyboardInterrupt
        return Outcome(Counter(puts=2), [Finding("p", "f", seed, ("one",))])

    with pytest.raises(KeyboardInterrupt):
        run(Campaign(tmp_path / "cut", [Made("some", 5, interrupted)], 3))
    with (tmp_path / "cut" / RECORD).open("a") as record:
        record.write('{"part": "some", "se')  # As a kill leaves it.
    rest = Made("some", 5)
    campaign = Campaign(tmp_path / "cut", [rest], 3)
    assert campaign.resume() == 2
    run(campaign)
    assert rest.seeds == whole.seeds[2:]
    total = campaign.totals["some"]
    assert (total.rounds, total.counts["puts"]) == (5, 10)
    assert [done.outcome.findings[0].steps for done in total.findings] == [("one",), ("one",)]
    lines = (tmp_path / "cut" / RECORD).read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == 5


def test_no_round_begins_after_its_time(tmp_path: Path) -> None:
    part = Made("some", 5)
    Campaign(tmp_path, [part], 3).run(None, 0.0, lambda _part, _seed: None, lambda _done: None)
    assert part.seeds == []
