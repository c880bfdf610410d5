"""The simulation: lives by a seed keep every promise, repeat themselves, and would notice a broken one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from campaign.simulation import lives
from campaign.simulation.part import PARTS, live, shrunk
from campaign.simulation.steps import HOUR_MS, Life, Setup, Step, draw
from simulation import simulated_files
from tiermq.tier.dispatch.proof import EvictionProof
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.fetch.window_cache import Window
from tiermq.tier.flat.flat_file import FlatAppendFile
from tiermq.tier.index.index_request import PutOutcome
from tiermq.tier.index.index_store import IndexStore
from tiermq.tier.retention.retention import Retention

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.crash


@pytest.mark.parametrize("seed", range(5))
def test_a_simulated_life_keeps_every_promise(seed: int, tmp_path: Path) -> None:
    outcome = PARTS[0].round(seed, tmp_path)
    assert outcome.findings == []
    assert outcome.counts["rounds"] == 1
    assert outcome.counts["messages_checked"] > 0
    assert outcome.counts["steps"] >= 25


def test_the_same_seed_is_the_same_life() -> None:
    traces = []
    for _ in range(2):
        outcome, world = live(draw(4))
        assert world is not None
        traces.append((world.trace, outcome.counts))
    assert traces[0] == traces[1]
    assert len(traces[0][0]) == len(draw(4).steps)


TRACE = """
import json, sys
from campaign.simulation.part import draw, live
print(json.dumps(live(draw(int(sys.argv[1])))[1].trace))
"""


def test_the_same_seed_is_the_same_life_in_another_process() -> None:
    seed = 5
    environment = {**os.environ, "PYTHONHASHSEED": "123"}
    command = [sys.executable, "-c", TRACE, str(seed)]
    reported = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True).stdout
    _, world = live(draw(seed))
    assert world is not None
    assert json.loads(reported) == world.trace


def test_the_pure_kernel_lives_the_same_lives(tmp_path: Path) -> None:
    pure = PARTS[1]
    if pure.missing():
        pytest.skip(pure.missing())
    outcome = pure.round(2, tmp_path)
    assert outcome.findings == []
    compiled = PARTS[0].round(2, tmp_path)
    assert outcome.counts == compiled.counts
    assert pure.shrink(2, tmp_path) is None


# A store that breaks a promise is noticed. Each of these breaks one on purpose.


def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that says it has synced, and has not."""
    monkeypatch.setattr(simulated_files.SimulatedRegion, "sync", lambda _region: None)


def no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local files go, whether the tier has them or not."""
    monkeypatch.setattr(EvictionProof, "must_stay", lambda *_: False)


def forgetful_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    """A back end that changes a byte of what it seals, under a store that believes it and passes damage over."""
    seal: Callable[..., None] = MemoryDriver.seal

    def damage(driver: MemoryDriver, key: Any, **known: Any) -> None:
        seal(driver, key, **known)
        driver._place.segments[key].data[5] ^= 1

    monkeypatch.setattr(MemoryDriver, "seal", damage)
    monkeypatch.setattr(EvictionProof, "must_stay", lambda proof, _, end: end > proof.lag().copied_to)
    monkeypatch.setattr(
        FlatAppendFile, "_read_segment", lambda file, segment, *span: file._driver.read(segment.key, *span)
    )
    monkeypatch.setattr(Window, "_sound_end", lambda window, _offset: window.end_offset)


def deaf_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that says it has taken every key."""
    monkeypatch.setattr(IndexStore, "put_batch", lambda *_: PutOutcome.SUCCESS)


def impatient_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is an hour old goes."""
    monkeypatch.setattr(Retention, "kept_ms", lambda *_: 3_600_000)


SETTINGS = {
    **draw(0).setup.settings,
    "flush_disk_type": "SYNC_FLUSH",
    "mapped_file_size_commit_log": 4096,
    "tiered_store_commit_log_max_size": 1_200,
    "tiered_store_consume_queue_max_size": 120,
    "transient_store_pool_enable": False,
}
SETUP = Setup("plain", is_retrying=False, delay_s=0.05, sync=True, ttl_hours=20, settings=SETTINGS)


def life_of(*steps: Step) -> Life:
    return Life(1, SETUP, steps)


def step(kind: str, *values: Any) -> Step:
    return Step(kind, values, 11)


PUTS = [step("put_many", 30), step("put_many", 30), step("dispatch")]
BREAKS: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, list[Step]]] = {
    no_sync: ("what was promised to last survives", [*PUTS, step("cut_power", 0, 0.0)]),
    no_proof: ("local files go only once the tier has them", [*PUTS, step("evict")]),
    deaf_index: ("the index finds every message by its key", [*PUTS, step("flush_to_tier"), step("evict")]),
    impatient_retention: (
        "only what is too old leaves the tier",
        [*PUTS, step("flush_to_tier"), step("evict"), step("move_clock", 3 * HOUR_MS), step("expire")],
    ),
    forgetful_tier: ("every message is read once and in order", [*PUTS, step("flush_to_tier"), step("evict")]),
}


@pytest.mark.parametrize("breaks", BREAKS, ids=lambda breaks: breaks.__name__)
def test_a_store_that_breaks_a_promise_is_noticed(
    breaks: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    promise, steps = BREAKS[breaks]
    assert live(life_of(*steps))[0].findings == [], "it holds in a sound store"
    breaks(monkeypatch)
    assert [finding.promise for finding in live(life_of(*steps))[0].findings] == [promise]


def test_a_failing_life_shrinks_to_a_few_steps_that_fail_again(monkeypatch: pytest.MonkeyPatch) -> None:
    no_proof(monkeypatch)
    noise = [step("flush"), step("ask_keys", 1), step("move_clock", 1)]
    life = life_of(*noise, *PUTS, *noise, step("restart"), step("evict"), *noise)
    short = shrunk(life)
    assert short is not None
    assert short.promise == "local files go only once the tier has them"
    assert 2 <= len(short.steps) <= 4
    assert short.steps[-1] == "evict"


def test_a_life_that_does_not_fail_has_nothing_to_shrink() -> None:
    assert shrunk(draw(0)) is None


def test_an_unexpected_error_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_world: lives.World, *_values: object) -> None:
        raise ZeroDivisionError("as planned")

    monkeypatch.setattr(lives.World, "flush_to_tier", fail)
    [finding] = live(draw(1))[0].findings
    assert "ZeroDivisionError: as planned" in finding.found
    assert finding.seed == 1


def test_steps_read_as_what_happens() -> None:
    inner = Step("put", (1, 30), 7)
    assert str(Step("cut_power", (3, 0.5), 8, inner)) == "cut_power(3, 0.5) during put(1, 30)"
    assert str(Step("dispatch", (), 9)) == "dispatch"
