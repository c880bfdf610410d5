"""The world: one broker's machine and tier, one store after the other on it, and the model that all are held to.

`live(life)` carries out the steps of a life, looks at everything after each of them, and ends with the hardest
question: the weather clears, everything is uploaded, local files go, the disk is lost, and all of it must be there.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from campaign.simulation.back_end import BackEnd
from campaign.simulation.looking import Look, Unanswered
from campaign.simulation.machine import KEEP_ALL, Disk, Process
from campaign.simulation.model import Model, Sent, broken
from campaign.simulation.power import Power, PowerCut
from campaign.simulation.steps import HOUR_MS, QUEUES, SIZES, Life, Step
from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tiermq import Message
from tiermq.errors import TierError, TierMQError
from tiermq.kernel import PutResult
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.status import PutStatus
from tiermq.tier.retention.orphans import find_orphans
from tiermq.tier.tiered_store import TieredStore
from tiermq.tier.verify.verify import verify_tier

ROOT = "/store"
SETTLING_MS = 130_000  # Behind bad weather: leases, breakers and back-offs are over by then.
KEYS_A_STEP = 3
OPENS_MAX = 12


class World:
    """See the module. Used by one thread."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.clock = ManualClock()
        setup = life.setup
        self.back_end = BackEnd(setup.back_end, self.clock, is_retrying=setup.is_retrying, delay_s=setup.delay_s)
        self.weather = self.back_end.weather
        self.model = Model(QUEUES)
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []
        self.disk = Disk.blank(self.clock)
        self.power = Power()
        self._lives = 0
        self._set_back_ms = 0
        self._last_storm_ms = -SETTLING_MS
        self._is_paused = False
        self._is_disk_bad = False
        self._chance = random.Random(life.seed)
        self._start_life()

    # One life after the other

    def _start_life(self, *, restore: bool = False) -> None:
        self._begin_process()
        self._open(restore)

    def _begin_process(self) -> None:
        self._lives += 1
        self.counts["lives"] += 1
        self.power = Power(self.power.digest)
        self.process = Process(self.disk, self.power, self._lives)
        self._is_paused = False

    def _open(self, restore: bool) -> None:
        self.store = TieredStore.open(
            ROOT,
            driver=self.back_end.driver(self.power, self._lives),
            clock=self.clock,
            background=False,
            restore=restore,
            surroundings=self.process,
            **self.life.setup.settings,
        )

    def _end(self, files: SimulatedFileAccess) -> None:
        """The process is gone; its machine has these files."""
        if not self.power.is_off:
            self.power.cut()
        self.disk = self.process.leave(files)

    def _settle(self, *, lost_disk: bool = False) -> None:
        self.store.local.dispatch_now()
        ends = {name: self.store.max_offset(*name) for name in self.model.queues}
        lows = {name: self.store.min_offset(*name) for name in self.model.queues} if lost_disk else None
        self.counts["messages_lost_as_allowed"] += self.model.settle(ends, lost_disk=lost_disk, lows=lows)
        self.model.all_visible()

    def _die_during(self, step: Step, ends: Callable[[], SimulatedFileAccess]) -> None:
        """Do what the step says, but have the power go at its n-th call; right behind it when there are fewer."""
        after: list[SimulatedFileAccess] = []
        self.power.arm(step.values[0], lambda: after.append(ends()))
        if step.inner is not None:
            with suppress(PowerCut), _quiet_threads():
                self._perform(step.inner)
        if not self.power.is_off:
            self.power.cut()
        self._end(after[0])

    # Steps

    def run(self) -> None:
        for number, step in enumerate(self.life.steps):
            try:
                self._step(step)
            except BaseException as error:
                error.add_note(f"in step {number}: {step}")
                raise
        try:
            self.finale()
        except BaseException as error:
            error.add_note("at the end, when the weather has cleared")
            raise

    def _step(self, step: Step) -> None:
        self.counts["steps"] += 1
        self.weather.begin_step(step.seed)
        if not self.weather.is_calm:
            self._last_storm_ms = self.clock.now_ms()
        reported = self._perform(step)
        self._look()
        self.trace.append(f"{step} -> {reported} {self.power.digest:08x} {self.clock.now_ms()}")

    def _perform(self, step: Step) -> object:
        action = getattr(self, step.kind)
        if step.kind in ("kill", "cut_power", "cut_power_twice", "lose_disk", "disk_error"):
            return action(step)
        return action(*step.values, random.Random(step.seed))

    @property
    def _may_fail(self) -> bool:
        """Whether the tier may leave a question unanswered now: weather, or what is left of it."""
        return self.weather.name != "calm" or self.clock.now_ms() - self._last_storm_ms < SETTLING_MS

    def _look(self) -> None:
        """After every step, in calm weather: everything is there."""
        with self.weather:
            look = self._new_look(may_fail=self._may_fail)
            look.bounds()
            with suppress(Unanswered):
                look.everything()
                look.keys(self._some(KEYS_A_STEP))
                look.shared_key(self._chance.choice(QUEUES)[0])

    def _new_look(self, *, may_fail: bool) -> Look:
        kept_since_ms = self.clock.now_ms() - self.life.setup.ttl_hours * HOUR_MS + self._set_back_ms
        return Look(self.store, self.model, self.counts, may_fail=may_fail, kept_since_ms=kept_since_ms)

    def _some(self, count: int) -> list[Sent]:
        """Messages that readers can see, by chance."""
        seen = [
            sent
            for queue in self.model.queues.values()
            for sent in queue.sent[: max(0, self.store.max_offset(*queue.name) - queue.low)]
        ]
        return self._chance.sample(seen, min(count, len(seen)))

    # What producers do

    def put(self, queue: int, size: int, _chance: random.Random) -> str:
        sent = self.model.prepare(QUEUES[queue], size, self.clock.now_ms())
        return self._acknowledge([sent], [self.store.put(_message(sent))])

    def put_many(self, count: int, chance: random.Random) -> str:
        sent = [
            self.model.prepare(chance.choice(QUEUES), chance.choice(SIZES), self.clock.now_ms()) for _ in range(count)
        ]
        return self._acknowledge(sent, list(self.store.put_many([_message(each) for each in sent])))

    def put_batch(self, queue: int, count: int, chance: random.Random) -> str:
        name = QUEUES[queue]
        sent = [self.model.prepare(name, chance.choice(SIZES), self.clock.now_ms()) for _ in range(count)]
        body = encode_client_batch([BatchElement(0, each.body, each.properties) for each in sent])
        return self._acknowledge(sent, list(self.store.put_batch(Message(name[0], body, name[1], born_timestamp_ms=1))))

    def _acknowledge(self, sent: Sequence[Sent], results: Sequence[PutResult]) -> str:
        if len(results) != len(sent):
            broken("each message of a put has an answer", f"{len(sent)} were put, {len(results)} answered")
        for each, result in reversed(list(zip(sent, results, strict=True))):
            self.counts["puts"] += 1
            if result.ok:
                if result.queue_offset != each.offset:
                    broken("queue offsets count on", f"{each} was given {result.queue_offset}")
                each.is_acknowledged = True
                each.is_durable = self.life.setup.sync
            elif result.status is not PutStatus.FLUSH_DISK_TIMEOUT:
                self.model.refused(each)
        return " ".join(sorted({result.status.name for result in results}))

    # What the services of a store do

    def dispatch(self, _chance: random.Random) -> int:
        count = self.store.local.dispatch_now()
        self.model.all_visible()
        return count

    def flush(self, _chance: random.Random) -> None:
        self.store.flush()
        self.model.all_durable()

    def flush_queues(self, _chance: random.Random) -> None:
        self.store.local.flush_queues()

    def turns(self, count: int, _chance: random.Random) -> int:
        """The tier's dispatcher as its threads would drive it."""
        engine = self.store.tier.engine
        engine.tick()
        return sum(engine.step() for _ in range(count))

    def flush_to_tier(self, _chance: random.Random) -> bool:
        is_done = self.store.flush_to_tier()
        self.model.all_durable()
        self.model.all_visible()
        if not is_done and not self._may_fail and not self._is_paused and not self._is_disk_bad:
            broken("what was put can be uploaded in calm weather", str(self.store.status()["tier"]))
        return is_done

    def index_upkeep(self, count: int, _chance: random.Random) -> int:
        index = self.store.tier.index
        assert index is not None
        return sum(index.run_once() == 0 for _ in range(count))

    def evict(self, _chance: random.Random) -> int:
        """The local cleaner, until it removes no more."""
        self.clock.advance_ms(1_000)  # Files that were written this millisecond are not old yet.
        removed = 0
        while count := self.store.clean_now().log_files:
            removed += count
        self.counts["log_files_evicted"] += removed
        return removed

    def expire(self, _chance: random.Random) -> object:
        """Retention in the tier."""
        try:
            report = self.store.expire_now()
            self.counts["segments_expired"] += len(report.segments)
            if report.failures and not self._may_fail:
                broken("what is too old leaves the tier in calm weather", str(report.failures[0]))
            return len(report.segments)
        except TierError:
            if not self._may_fail:
                raise
            return "unanswered"
        finally:
            kept_ms = self.life.setup.ttl_hours * HOUR_MS
            self.model.may_expire(self.clock.now_ms() - kept_ms + self._set_back_ms)

    def read_ahead(self, count: int, _chance: random.Random) -> int:
        """Let the pool do some of what readers asked it for, perhaps long ago."""
        return self.process.pool.run(count)

    def pause(self, _chance: random.Random) -> None:
        self._is_paused = True
        self.store.tier.engine.pause()

    def resume(self, _chance: random.Random) -> None:
        self._is_paused = False
        self.store.tier.engine.resume()

    # What readers do, in the weather that there is

    def read(self, queue: int, share: float, count: int, group: str, _chance: random.Random) -> str:
        name = QUEUES[queue]
        model = self.model.queues[name]
        return self._ask(
            lambda look: look.read(name, model.low + int(share * len(model.sent)), 2 * count, group, count)
        )

    def ask_keys(self, count: int, _chance: random.Random) -> str:
        return self._ask(lambda look: look.keys(self._some(count)))

    def ask_times(self, count: int, _chance: random.Random) -> str:
        if self._set_back_ms:
            return "times are not in order"
        return self._ask(lambda look: look.times(self._some(count)))

    def _ask(self, question: Callable[[Look], None]) -> str:
        try:
            question(self._new_look(may_fail=self._may_fail))
        except Unanswered:
            return "unanswered"
        return "answered"

    # What happens to all of them

    def change_weather(self, name: str, _chance: random.Random) -> None:
        self.weather.name = name
        if name != "calm":
            self._last_storm_ms = self.clock.now_ms()

    def move_clock(self, ms: int, _chance: random.Random) -> None:
        self.clock.advance_ms(ms)

    def set_clock_back(self, ms: int, _chance: random.Random) -> None:
        self._set_back_ms += ms
        self.clock.advance_ms(-ms)

    def restart(self, _chance: random.Random) -> None:
        self.counts["restarts"] += 1
        self.store.close()
        self.model.all_durable()
        self._end(self.disk.access)
        self._start_life()
        self._settle()

    def kill(self, step: Step) -> None:
        """The process dies: every byte that it stored is there, and the pool's are not in a file."""
        self.counts["kills"] += 1
        self._die_during(step, lambda: self.disk.after_cut(0, KEEP_ALL))
        self.model.acknowledged_are_durable()
        self._start_life()
        self._settle()

    def cut_power(self, step: Step) -> None:
        self.counts["power_cuts"] += 1
        self._die_during(step, lambda: self.disk.after_cut(step.seed, step.values[1]))
        self._start_life()
        self._settle()

    def cut_power_twice(self, step: Step) -> None:
        """And again while the store recovers from it."""
        self.counts["power_cuts"] += 1
        self._die_during(step, lambda: self.disk.after_cut(step.seed, step.values[1]))
        for number, calls in enumerate(step.values[2], start=1):
            self._begin_process()
            if self._opens_before(calls, step.seed + number, step.values[1]):
                self._settle()
                return
        self._start_life()
        self._settle()

    def _opens_before(self, calls: int, seed: int, likely: float) -> bool:
        """Open the store, but have the power go at the n-th call of that; False when it went."""
        after: list[SimulatedFileAccess] = []
        self.power.arm(calls, lambda: after.append(self.disk.after_cut(seed, likely)))
        try:
            self._open(restore=False)
        except PowerCut:
            self.counts["power_cuts"] += 1
            self._end(after[0])
            return False
        self.power.disarm()
        return True

    def lose_disk(self, step: Step) -> str:
        """The machine is gone with all that was on it; the next one has the tier."""
        self.counts["disks_lost"] += 1
        self._die_during(step, lambda: self.disk.access)
        self.disk = Disk.blank(self.clock)
        self.weather.is_fresh = True
        for _ in range(OPENS_MAX):
            try:
                self._start_life(restore=True)
                break
            except TierError:
                if self.weather.is_calm and not self._may_fail:
                    raise
                self.clock.advance_ms(SETTLING_MS)
                self._end(self.disk.access)
                self.disk = Disk.blank(self.clock)
        else:
            with self.weather:
                self._start_life(restore=True)
        self.weather.is_fresh = False
        self._settle(lost_disk=True)
        return "restored"

    def disk_error(self, step: Step) -> str:
        """A call to the disk fails; the operator looks, and starts the store again."""
        assert step.inner is not None
        left = [step.values[0]]

        def fail(operation: str, path: str) -> None:
            self.power.touch(operation, path)
            left[0] -= 1
            if left[0] == -1:
                self.counts["disk_errors"] += 1
                raise OSError(5, "Input/output error, as planned", path)

        self.process.access.on_call = fail
        reported = "nothing failed"
        self._is_disk_bad = True
        try:
            self._perform(step.inner)
        except (TierMQError, OSError) as error:
            reported = type(error).__name__
        finally:
            self._is_disk_bad = False
        self.process.access.on_call = self.power.touch
        self._end(self.disk.after_cut(step.seed, step.values[1]))
        self._start_life()
        self._settle()
        return reported

    # The end

    def finale(self) -> None:
        """Everything is uploaded, evicted, and read; then the disk is lost, and all of it is there again."""
        self.change_weather("calm", self._chance)
        self.store.tier.engine.resume()
        self._is_paused = False
        for _ in range(5):
            self.clock.advance_ms(SETTLING_MS)
            if self.store.flush_to_tier():
                break
        self.model.all_durable()
        self.model.all_visible()
        self.flush_to_tier(self._chance)
        self.expire(self._chance)  # Deletions that a life before began are finished by it.
        self._take_turns()
        self._catch_up()
        self.evict(self._chance)
        self._look_at_all()
        self._verify()
        self._end(self.disk.access)
        self.disk = Disk.blank(self.clock)
        self._start_life(restore=True)
        highs = {name: queue.high for name, queue in self.model.queues.items()}
        self._settle(lost_disk=True)
        if highs != {name: queue.high for name, queue in self.model.queues.items()}:
            broken("a lost disk is restored from the tier", f"queues ended at {highs}")
        self._look_at_all()

    def _take_turns(self) -> None:
        """Manifests that are out of date, segments that are full: whatever the dispatcher's threads would do now."""
        engine = self.store.tier.engine
        engine.tick()
        for _ in range(1_000):
            if not engine.step():
                return
        broken("the dispatcher comes to rest in calm weather", str(engine.status()))

    def _catch_up(self) -> None:
        index = self.store.tier.index
        assert index is not None
        for _ in range(500):
            if index.run_once() != 0 and index.is_complete:
                return
        broken("the index catches up in calm weather", f"{index.states()}, {index.hole_count} holes")

    def _look_at_all(self) -> None:
        look = self._new_look(may_fail=False)
        look.bounds()
        look.everything()
        everything = [sent for queue in self.model.queues.values() for sent in queue.sent]
        look.keys(everything)
        if not self._set_back_ms:
            look.times(everything[::5])

    def _verify(self) -> None:
        driver, metadata = self.back_end.driver(Power(), 0), self.store.tier.metadata
        report = verify_tier(driver, metadata=metadata, threads=1)
        if not report.is_clean:
            broken("the tier agrees with itself", str(report.problems[:3]))
        orphans = find_orphans(driver, metadata, grace_ms=0, clock=self.clock)
        if not orphans.is_clean:
            broken("every object in the tier is accounted for", f"{orphans.orphans[:3]} {orphans.missing[:3]}")


def _message(sent: Sent) -> Message:
    topic, queue_id = sent.queue
    return Message(topic, sent.body, queue_id, encoded_properties=sent.properties, born_timestamp_ms=1)


@contextmanager
def _quiet_threads() -> Iterator[None]:
    """The thread that ends a store's work dies with the others; its log is not needed."""
    before = threading.excepthook

    def hook(reported: threading.ExceptHookArgs) -> None:
        if reported.exc_type is not PowerCut:
            before(reported)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before
