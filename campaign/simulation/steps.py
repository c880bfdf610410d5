"""Steps: what a life consists of, drawn from one seed before it begins.

A step says what happens, and has a seed of its own for whatever chance decides inside of it. So a list of steps is the
whole history, any of them may be left out, and what is left happens as before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from campaign.simulation.back_end import DELAYS_S, WEATHERS

QUEUES = (("orders", 0), ("orders", 1), ("orders", 2), ("refunds", 0), ("audit", 0))
SIZES = (1, 30, 120, 400, 900)
SHARES = (0.0, 0.3, 0.5, 0.9, 1.0)  # How likely an unsynced page is to be on the disk after a power cut.
HOUR_MS = 3_600_000
STEPS_MIN, STEPS_MAX = 25, 70


@dataclass(frozen=True, slots=True)
class Step:
    """`kind` names a method of `lives.World`; `values` are its arguments; `inner` is what goes on meanwhile."""

    kind: str
    values: tuple[Any, ...]
    seed: int
    inner: Step | None = None

    def __str__(self) -> str:
        reported = f"{self.kind}{self.values!r}" if self.values else self.kind
        return reported if self.inner is None else f"{reported} during {self.inner}"


@dataclass(frozen=True, slots=True)
class Setup:
    """What a life is lived with."""

    back_end: str
    is_retrying: bool
    delay_s: float
    sync: bool
    ttl_hours: int
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Life:
    """Everything about a round."""

    seed: int
    setup: Setup
    steps: tuple[Step, ...]


def draw(seed: int) -> Life:
    """The life that belongs to a seed."""
    chance = random.Random(seed)
    setup = _draw_setup(chance)
    count = chance.randint(STEPS_MIN, STEPS_MAX)
    return Life(seed, setup, tuple(_draw_step(chance, setup) for _ in range(count)))


def _draw_setup(chance: random.Random) -> Setup:
    sync = chance.random() < 0.5
    pooled = sync and chance.random() < 0.2
    ttl_hours = chance.choice([2, 2, 20, 1_000])
    settings: dict[str, Any] = {
        "flush_disk_type": "SYNC_FLUSH" if sync else "ASYNC_FLUSH",
        "mapped_file_size_commit_log": chance.choice([4, 8, 16]) * 1024,
        "mapped_file_size_consume_queue": 20 * chance.choice([10, 30, 50]),
        "max_hash_slot_num": 64,
        "max_index_num": chance.choice([20, 60, 200]),
        "file_reserved_time": 0,
        "delete_commit_log_files_interval": 0,
        "broker_name": "broker-a",
        "tier_url": "memory://simulation",
        "tier_close_timeout": 600_000,  # Of real time, which must not decide anything.
        "tiered_storage_level": chance.choice([1, 1, 2]),
        "read_ahead_cache_enable": chance.random() < 0.7,
        "tiered_store_commit_log_max_size": chance.choice([1_200, 2_500, 8_000]),
        "tiered_store_consume_queue_max_size": 20 * chance.choice([6, 16, 64]),
        "tiered_store_index_file_max_hash_slot_num": chance.choice([8, 64]),
        "tiered_store_index_file_max_index_num": chance.choice([12, 40, 200]),
        "tiered_store_group_commit_count": chance.choice([3, 20, 4_096]),
        "tiered_store_group_commit_size": chance.choice([600, 4_000, 4_194_304]),
        "tier_manifest_interval": chance.choice([0, 60_000]),
        "tiered_store_file_reserved_time": ttl_hours,
        "commit_log_rolling_minimum_size": chance.choice([0, 16_777_216]),
    }
    if pooled:
        settings |= {"transient_store_pool_enable": True, "transient_store_pool_size": 2}
    if chance.random() < 0.2:
        settings |= {"enabled_append_prop_crc": True, "force_verify_prop_crc": True}
    return Setup(
        chance.choice(["plain", "objects"]), chance.random() < 0.3, chance.choice(DELAYS_S), sync, ttl_hours, settings
    )


# Kind and weight. Those of the second table may also be cut short by whatever ends a life.
ALONE = {
    "read": 8, "ask_keys": 3, "ask_times": 3, "read_ahead": 2, "change_weather": 5, "pause": 1, "resume": 1,
    "move_clock": 7, "set_clock_back": 1,
}  # fmt: skip
WORK = {
    "put": 12, "put_many": 8, "put_batch": 5, "dispatch": 6, "flush": 4, "flush_queues": 3, "turns": 9,
    "flush_to_tier": 6,
    "index_upkeep": 5, "evict": 5, "expire": 6, "restart": 3,
}  # fmt: skip
ENDINGS = {"kill": 3, "cut_power": 8, "cut_power_twice": 3, "lose_disk": 2, "disk_error": 3}


def _draw_step(chance: random.Random, setup: Setup) -> Step:
    table = {**ALONE, **WORK, **ENDINGS}
    [kind] = chance.choices(list(table), list(table.values()))
    seed = chance.getrandbits(32)
    if kind not in ENDINGS:
        return Step(kind, _draw_values(kind, chance, setup), seed)
    inner = None
    if kind == "disk_error" or chance.random() < 0.7:
        [work] = chance.choices(list(WORK), list(WORK.values()))
        inner = Step(work, _draw_values(work, chance, setup), chance.getrandbits(32))
    calls = int(chance.paretovariate(0.6)) - 1  # Mostly early, sometimes far into it.
    values: tuple[Any, ...] = (min(calls, 2_000), chance.choice(SHARES))
    if kind == "cut_power_twice":
        values += (tuple(min(int(chance.paretovariate(0.5)) - 1, 300) for _ in range(chance.randint(1, 3))),)
    if kind in ("kill", "lose_disk"):
        values = values[:1]
    return Step(kind, values, seed, inner)


def _draw_values(kind: str, chance: random.Random, setup: Setup) -> tuple[Any, ...]:
    queue = chance.choices(range(len(QUEUES)), [6, 3, 1, 3, 1])[0]
    match kind:
        case "put":
            return queue, chance.choice(SIZES)
        case "put_many":
            return (chance.choice([2, 5, 12, 30]),)
        case "put_batch":
            return queue, chance.choice([1, 3, 9])
        case "read":
            return queue, round(chance.random(), 2), chance.choice([1, 5, 32]), chance.choice(["a", "b"])
        case "ask_keys" | "ask_times":
            return (chance.choice([1, 4]),)
        case "read_ahead" | "turns" | "index_upkeep":
            return (chance.choice([1, 2, 5, 50]),)
        case "change_weather":
            return (chance.choice(["calm", "calm", *WEATHERS]),)
        case "move_clock":
            return (chance.choice([1, 700, 5_000, 31_000, 130_000, HOUR_MS, 3 * HOUR_MS, 30 * HOUR_MS]),)
        case "set_clock_back":
            return (chance.choice([1, 900, 2_500, *([200_000] if setup.sync else [])]),)
    return ()
