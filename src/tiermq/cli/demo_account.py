"""What the demo found, as values: for the page, for `--json`, and for tests."""

from __future__ import annotations

import dataclasses
from typing import Any

from tiermq.cli.demo_engine import SqlRow
from tiermq.cli.demo_orders import Tally
from tiermq.cli.demo_timeline import Step

KIB = 1024
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One way by which everything was counted, and what came out."""

    by: str
    count: int
    checksum: int
    agrees: bool


@dataclasses.dataclass(slots=True)
class Account:
    """The whole demo in numbers. Sizes are bytes; `steps` have more, each under the name of its step."""

    directory: str
    tier: str
    engine: str
    kernel: str
    without_spark: str | None = None  # Why there was none.
    acknowledged: int = 0  # By the producers that were killed.
    recovered: int = 0  # Of them, and of what they had no time to acknowledge.
    messages: int = 0
    checksum: int = 0
    record_bytes: float = 0.0
    local_bytes_before: int = 0
    local_bytes_after: int = 0
    log_files_evicted: int = 0
    tier_bytes: int = 0
    table_files: int = 0
    table_bytes: int = 0
    took_s: float = 0.0
    by_tag: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    sql: list[SqlRow] = dataclasses.field(default_factory=list)
    checks: list[Check] = dataclasses.field(default_factory=list)
    steps: list[Step] = dataclasses.field(default_factory=list)

    def check(self, by: str, found: Tally, expected: Tally) -> bool:
        """Note that `found` was counted by `by`; whether it is as expected."""
        agrees = found.agrees(expected)
        self.checks.append(Check(by, found.count, found.checksum, agrees))
        return agrees

    def fact(self, step: str, name: str) -> float:
        """A number of a step; 0 when the step was left out."""
        return next((each.facts.get(name, 0.0) for each in self.steps if each.name == step), 0.0)

    def has(self, step: str) -> bool:
        return any(each.name == step for each in self.steps)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def size(count: float) -> str:
    """Bytes for eyes: three digits and a unit."""
    unit = 0
    while count >= 999.5 and unit < len(_UNITS) - 1:
        count /= KIB
        unit += 1
    if unit == 0 or count >= 99.5:
        return f"{count:.0f} {_UNITS[unit]}"
    return f"{count:.3g} {_UNITS[unit]}"


def seconds(count: float) -> str:
    """Seconds for eyes."""
    if count >= 10:
        return f"{count:.0f} s"
    return f"{count:.1f} s" if count >= 1 else f"{count * 1000:.0f} ms"


def rate(count: float, took_s: float) -> str:
    """So many in so long, a second, for eyes."""
    each = count / max(took_s, 1e-9)
    return f"{each:,.0f}/s" if each < 99_500 else f"{each / 1000:,.0f}k/s"
