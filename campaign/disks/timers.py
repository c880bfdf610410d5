"""The ground of timers: the wheel, its log and its checkpoint.

The second copy of every timer is its message in the timer topic. What waited when the ground was built must come, in
its time, whatever went bad of the three; what was cancelled must not come, and what came before may come again.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

from campaign.disks.ground import Verdict
from campaign.disks.stores import abandon
from simulation.manual_clock import ManualClock
from small_store import SIZES
from tiermq import Message
from tiermq.delivery.timer.timer_checkpoint import FILE as CHECKPOINT
from tiermq.delivery.timer.timer_destination import TimerDestination
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.delivery.timer.timer_state import TimerSettings
from tiermq.message.properties import TIMER_DEQUEUE_MS, TIMER_OUT_MS, encode_properties
from tiermq.store.local_store import LocalStore

NOW_MS = 1_700_000_000_000
SETTINGS = TimerSettings(slots=600, log_file_bytes=4096, roll_window_slots=100, max_delay_s=3 * 24 * 3600)
TOPIC = "T"
TIMERS = 150
DELAYS_MS = (2_000, 30_000, 30_500, 60_000, 95_000, 150_000, 260_000)
LATEST_MS = 300_000
STEP_MS = 3_000
KINDS = {"timerwheel": "timer wheel", "timerlog": "timer log"}


class Contents(NamedTuple):
    now_ms: int
    came: set[bytes]
    waiting: set[bytes]
    cancelled: set[bytes]


class TimerGround:
    """Timers that wait, rolled, were delivered and cancelled; closed in order, or as a killed process leaves them."""

    repaired = frozenset({*KINDS.values(), "timer checkpoint"})
    unsummed = frozenset[str]()

    def __init__(self, *, killed: bool) -> None:
        self.killed = killed
        self.name = "killed timers" if killed else "timers"

    def build(self, root: Path, seed: int) -> Contents:
        chance = random.Random(seed)
        world = _World(root, NOW_MS)
        sent: dict[bytes, int] = {}
        for number in range(TIMERS):
            body = b"timer %d" % number
            sent[body] = world.clock.now_ms() + chance.choice(DELAYS_MS)
            world.send(body, sent[body])
            if number % 10 == 0:
                world.wait(2_000)
        world.wait(100_000)  # Those that are far from their time have rolled meanwhile.
        came = set(world.delivered())
        waiting = sorted(set(sent) - came)
        cancelled = set(chance.sample(waiting, 3))
        for body in cancelled:
            world.timers.cancel(TOPIC, f"K-{body.decode()}", sent[body])
        world.wait(STEP_MS)
        assert came == set(world.delivered())
        world.end(killed=self.killed)
        return Contents(world.clock.now_ms(), came, set(waiting) - cancelled, cancelled)

    def kind_of(self, path: Path) -> str:
        return "timer checkpoint" if path.name == CHECKPOINT else KINDS.get(path.parts[1], "")

    def judge(self, root: Path, expected: Contents) -> Verdict:
        verdict = Verdict()
        with verdict.telling("open"):
            world = _World(root, expected.now_ms)
            world.wait(LATEST_MS)
            found = world.delivered()
            world.end(killed=False)
            known = expected.came | expected.waiting
            verdict.wrong += [f"came, and was never sent: {body!r}" for body in found if body not in known]
            verdict.wrong += [f"came early: {body!r}" for body, is_early in found.items() if is_early]
            verdict.lost += [f"never came: {body!r}" for body in sorted(expected.waiting) if body not in found]
            if world.timers.counts.skipped:
                verdict.reported.append(f"{world.timers.counts.skipped} timers were passed over")
        return verdict


class _World:
    """A store on the disk and its timers, at a clock of our own."""

    def __init__(self, root: Path, now_ms: int) -> None:
        self.clock = ManualClock(now_ms)
        self.store = LocalStore.open(root / "store", clock=self.clock, background=False, **SIZES)
        try:
            self.timers = TimerService(self.store, root / "store", self.clock, SETTINGS)
        except BaseException:
            self.store.close()
            raise

    def send(self, body: bytes, deliver_ms: int) -> None:
        properties = {"UNIQ_KEY": f"K-{body.decode()}", "TIMER_DELIVER_MS": str(deliver_ms)}
        place = self.timers.place(TOPIC, 0, encode_properties(properties))
        assert isinstance(place, TimerDestination), place
        assert self.store.put(Message(place.topic, body, place.queue_id, encoded_properties=place.properties)).ok
        self.store.dispatch_now()

    def wait(self, ms: int) -> None:
        """Let time pass, step by step, and do all that can be done at each."""
        self.store.dispatch_now()
        end_ms = self.clock.now_ms() + ms
        while self.clock.now_ms() < end_ms:
            self.clock.set_ms(min(end_ms, self.clock.now_ms() + STEP_MS))
            while self.timers.run_once() == 0.0 or self.store.dispatch_now():
                pass

    def delivered(self) -> dict[bytes, bool]:
        """What came, and whether it came before its time."""
        found: dict[bytes, bool] = {}
        offset = 0
        while (page := self.store.get(TOPIC, 0, offset)).count:
            for message in page.messages:
                due_ms = int(message.properties[TIMER_OUT_MS]) + SETTINGS.precision_ms
                found[message.body] = int(message.properties[TIMER_DEQUEUE_MS]) < due_ms
            offset = page.next_offset
        return found

    def end(self, *, killed: bool) -> None:
        self.timers.finish()
        self.timers.close()
        if killed:
            self.store.flush()
            self.store.flush_queues()
            abandon(self.store)
        else:
            self.store.close()
