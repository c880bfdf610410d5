"""What a part of the campaign is: rounds that follow from their seed, what each counted, and what it found.

A round follows from its seed (and by the machine, where real processes are killed): a finding names the command
that repeats it. Parts that need something of the machine say what is missing instead of passing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise that did not hold."""

    promise: str
    """What should have been, in words."""
    found: str
    """What was."""
    seed: int
    steps: tuple[str, ...] = ()
    """The shortest way there that is known."""


@dataclass(slots=True)
class Outcome:
    """What one round did."""

    counts: Counter[str] = field(default_factory=Counter)
    """Such as rounds, puts, faults_injected, messages_checked, kills, messages_lost: summed over rounds."""
    findings: list[Finding] = field(default_factory=list)
    peaks: dict[str, float] = field(default_factory=dict)
    """Such as memory_mb, open_files: the largest of all rounds."""


class Part(Protocol):
    """One part. Stateless: everything of a round is in its seed and its scratch directory."""

    @property
    def name(self) -> str:
        """One word, as `--part` takes it."""
        ...

    @property
    def title(self) -> str:
        """What it tries, in a line."""
        ...

    @property
    def rounds(self) -> int:
        """How many rounds a campaign does by default."""
        ...

    def missing(self) -> str:
        """What the machine lacks for this part, in words; "" when it can run."""
        ...

    def round(self, seed: int, scratch: Path) -> Outcome:
        """One round in a directory of its own. An exception is a finding, too: the runner makes it one."""
        ...

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        """The shortest way to a failing round's finding; None where it does not fail, or cannot be made shorter."""
        ...
