"""The second half of the demo: the history goes to a tier, the broker's disk is lost, and everything comes back."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

BROKER = "demo"


@dataclasses.dataclass(frozen=True, slots=True)
class TierResult:
    """What happened, in numbers."""

    tier: str
    tiered: int
    tiered_per_second: int
    restore_seconds: float
    cold_reads_per_second: int
    cold_keys_found: int


def tier_and_restore(
    directory: Path,
    tier: str,
    *,
    lap: Callable[[], float],
    read_back: Callable[[Any], int],
    look_up_keys: Callable[[Any], int],
    say: Callable[[str], None],
) -> TierResult:
    """Tier the store in `directory`, delete the directory, restore it from the tier alone, and read it all again."""
    from tiermq import TieredStore

    lap()
    with TieredStore.open(directory, tier=tier, broker_name=BROKER) as store:
        store.tier_now()
        tiered = sum(file.commit_offset for file in store.tier.files)
        tiered_rate = tiered / lap()
        say(f"6  Copied {tiered:,} messages to the tier {tier}, {tiered_rate:,.0f} a second.")
    shutil.rmtree(directory)
    say("7  Deleted the whole store directory.")
    lap()
    with TieredStore.open(directory, tier=tier, broker_name=BROKER, restore=True) as store:
        restore_seconds = lap()
        say(f"8  Opened it again from the tier alone: restored in {restore_seconds:.3f} s.")
        found = read_back(store)
        cold_rate = found / lap()
        keys = look_up_keys(store)
        say(f"9  Read {found:,} messages from the tier, {cold_rate:,.0f} a second, and {keys} by key: all there.")
    return TierResult(tier, tiered, round(tiered_rate), restore_seconds, round(cold_rate), keys)
