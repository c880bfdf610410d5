"""The last verifications of a tier, in one small object of it, so that a console shows what any process has found.

    verification.tiermq.json

    {"body":{"runs":[{"atMs":…,"tookMs":…,"by":"tier verify at host","cluster":null,"broker":null,"topic":null,
     "clean":true,"problemCount":0,"noteCount":2,"counts":{…},"problems":[{"kind":…,"where":…,"text":…}]},…]},
     "crc32":…,"version":2}

Invariants: newest first, at most RUNS_MAX, and of each the first PROBLEMS_MAX problems; replaced by compare-and-set, so
that two verifications at once are both kept. Nothing but consoles reads it: a damaged one is replaced.

Cost: one GET and one PUT for each verification.
"""

from __future__ import annotations

import socket
from typing import Any

from tiermq.errors import ManifestConflict
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.document import CorruptManifest, open_document, seal_document
from tiermq.tier.names import OBJECT_SUFFIX
from tiermq.tier.queue.segments import TierScope
from tiermq.tier.verify.verify_report import VerifyReport

NAME = f"verification{OBJECT_SUFFIX}"
RUNS_VERSION = 2
RUNS_MAX = 10
PROBLEMS_MAX = 50
TRIES = 5
Run = dict[str, Any]


def run_of(report: VerifyReport, scope: TierScope, how: str, began_ms: int, ended_ms: int) -> Run:
    """A verification that has ended, as it is kept; `how` is its command."""
    found = report.to_dict()
    return {
        "atMs": began_ms,
        "tookMs": ended_ms - began_ms,
        "by": f"{how} at {socket.gethostname()}",
        "cluster": scope.cluster,
        "broker": scope.broker,
        "topic": scope.topic,
        "clean": report.is_clean,
        "problemCount": report.problem_count,
        "noteCount": report.note_count,
        "counts": {name: count for name, count in found["counts"].items() if count},
        "problems": found["problems"][:PROBLEMS_MAX],
    }


def keep_run(driver: TierDriver, run: Run) -> None:
    """Add a verification to those of the tier. Raises TierError: it is not kept then."""
    for _ in range(TRIES):
        stored = driver.get_object(NAME)
        runs = [] if stored is None else _runs(stored.data)
        runs = sorted([run, *runs], key=lambda each: -each["atMs"])[:RUNS_MAX]
        try:
            driver.put_object(
                NAME, seal_document({"runs": runs}, RUNS_VERSION), expected=None if stored is None else stored.version
            )
        except ManifestConflict:
            continue
        return
    raise ManifestConflict(f"{NAME}: expected to replace what was read, found it changed {TRIES} times")


def kept_runs(driver: TierDriver) -> list[Run]:
    """The last verifications, newest first. Raises FutureManifest, and what the driver raises."""
    stored = driver.get_object(NAME)
    return [] if stored is None else _runs(stored.data)


def _runs(data: bytes) -> list[Run]:
    try:
        found = open_document(data, NAME, RUNS_VERSION).get("runs")
    except CorruptManifest:
        return []
    return [each for each in found if isinstance(each, dict) and "atMs" in each] if isinstance(found, list) else []
