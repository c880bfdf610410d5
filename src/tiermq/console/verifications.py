"""The last verifications of the tier: those that it keeps, and this console's own where it may not write there."""

from __future__ import annotations

from tiermq.console.catalogue import Result
from tiermq.console.sources import Visit
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.verify.verification_record import kept_runs
from tiermq.tier.verify.verify_report import Problem

OF_RECORDS = frozenset(
    each.name.lower()
    for each in (Problem.UNREADABLE, Problem.DAMAGED_LISTING, Problem.CHECKSUM, Problem.DAMAGED_RECORD)
)
"""Kinds of problems whose path is a segment with bytes that are not what was written."""


def verifications(visit: Visit, tier: TierDriver) -> list[Result]:
    """Newest first. Raises TierError."""
    runs = kept_runs(tier)
    own = visit.sources.verification
    if own is not None and all((each["atMs"], each["by"]) != (own["atMs"], own["by"]) for each in runs):
        runs = sorted([own, *runs], key=lambda each: -each["atMs"])
    return runs


def damaged_segments(runs: list[Result], topic: str) -> dict[str, str]:
    """By path: what the last verification of the topic has found."""
    last = next((each for each in runs if each.get("topic") in (None, topic)), None)
    problems = [] if last is None else last.get("problems") or []
    return {each["where"]: f"the last verification: {each['text']}" for each in problems if each["kind"] in OF_RECORDS}
