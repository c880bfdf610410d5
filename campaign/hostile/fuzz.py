"""The part that drives targets: kept inputs first, then new ones made of them and of sound seeds.

A round tries every target. Its seed and the corpus tell all its inputs; an input that breaks something is kept in the
corpus, so that it is tried again whatever the seed is.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaign.hostile import corpus
from campaign.hostile.corpus import Corpus
from campaign.hostile.mutator import Mutator
from campaign.hostile.target import Target
from campaign.part import Finding, Outcome

INPUTS = 300
MEND_SHARE = 0.6
WORK_S_MAX = 3.0
"""Processor time that one input of at most 64 KiB may take. More is a way to stop a broker with a few bytes."""


@dataclass(frozen=True)
class FuzzPart:
    """See the module."""

    targets: Callable[[Path], Sequence[Target]]
    """Given a directory to work in."""
    corpora: Path = corpus.HERE
    inputs: int = INPUTS
    rounds: int = 200
    name: str = "fuzz"
    title: str = "every decoder, by inputs made of a kept corpus: sound values or documented errors, and nothing else"

    def missing(self) -> str:
        return ""

    def round(self, seed: int, scratch: Path) -> Outcome:
        outcome = Outcome()
        outcome.counts["rounds"] += 1
        for target in self.targets(scratch):
            _Run(target, Corpus(self.corpora, target.name), seed, outcome).go(self.inputs)
        outcome.peaks["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return outcome

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        for target in self.targets(scratch):
            outcome = Outcome()
            run = _Run(target, Corpus(self.corpora, target.name), seed, outcome)
            run.go(self.inputs)
            if outcome.findings:
                return _shortest(target, run.broken[0], outcome.findings[0])
        return None


class _Run:
    """One target in one round."""

    def __init__(self, target: Target, kept: Corpus, seed: int, outcome: Outcome) -> None:
        self._target = target
        self._kept = kept
        self._seed = seed
        self._outcome = outcome
        self._seen: set[str] = set()
        self._reported: set[str] = set()
        self.broken: list[bytes] = []

    def go(self, inputs: int) -> None:
        seeds = self._target.seeds()
        kept = [data for _, data in self._kept.inputs()]
        for data in (*seeds, *kept):
            self._try(data, new=False)
        self._outcome.counts["kept_inputs"] += len(kept)
        # Not shared between targets, so that one more target changes nothing about the others.
        chance = random.Random(f"{self._seed}/{self._target.name}")
        mutator = Mutator(chance, self._target.words)
        bases = seeds + kept
        for _ in range(inputs):
            data = mutator.mutated(chance.choice(bases), bases)
            if self._target.mend is not None and chance.random() < MEND_SHARE:
                data = self._target.mend(data)
            self._try(data, new=True)
        self._outcome.counts["distinct_outcomes"] += len(self._seen)

    def _try(self, data: bytes, *, new: bool) -> None:
        self._outcome.counts["inputs"] += 1
        began_s = time.process_time()
        try:
            said = self._target.attempt(data)
        except (Exception, RecursionError) as error:
            self._found(data, f"{type(error).__name__}: {error}")
            return
        spent_s = time.process_time() - began_s
        peaks = self._outcome.peaks
        peaks["slowest_input_ms"] = max(peaks.get("slowest_input_ms", 0.0), round(spent_s * 1000, 1))
        if spent_s > WORK_S_MAX:
            self._found(data, f"{spent_s:.1f} s of processor time for {len(data)} bytes")
        elif said not in self._seen:
            self._seen.add(said)
            if new and self._kept.keep(data) is not None:
                self._outcome.counts["inputs_kept_now"] += 1

    def _found(self, data: bytes, what: str) -> None:
        if what[:80] in self._reported:
            return  # The same again, by another input.
        self._reported.add(what[:80])
        path = self._kept.keep(data, found=True)
        self.broken.append(data)
        self._outcome.findings.append(
            Finding(
                f"{self._target.name}: a sound value or a documented error for any bytes",
                what,
                self._seed,
                (f"the input is kept as {path.name if path else '?'}: {data[:200]!r}",),
            )
        )


def _shortest(target: Target, data: bytes, finding: Finding) -> Finding:
    """The same kind of finding by fewer bytes: pieces are taken out as long as it stays."""
    kind = finding.found.split(":")[0]

    def still_breaks(tried: bytes) -> bool:
        try:
            target.attempt(tried)
        except (Exception, RecursionError) as error:
            return type(error).__name__ == kind
        return False

    size = max(1, len(data) // 2)
    while size and still_breaks(data):
        at = 0
        while at < len(data):
            tried = data[:at] + data[at + size :]
            if still_breaks(tried):
                data = tried
            else:
                at += size
        size //= 2
    return Finding(finding.promise, finding.found, finding.seed, (f"{len(data)} bytes: {data[:400]!r}",))
