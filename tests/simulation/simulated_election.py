"""Replicas of one broker in simulated time: real elections, in-sync sets and epochs; made-up logs, network and bucket.

Everything that may go wrong does, by one seed: requests to the bucket fail, land without an answer, or land late;
replicas are paused, killed and cut off from each other; acknowledgements are late or lost; clocks begin anywhere and
run unequally fast (within what the margin allows).

`History` checks linearizability of the log: an acknowledged message is in every later read, at one offset; a read
never shows less, or something else, than an earlier one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from simulation.manual_clock import ManualClock
from tiermq.errors import ManifestConflict, TierUnavailable
from tiermq.files.file_access import FileAccess
from tiermq.replication.bucket_election import BucketElection, LeaseTimes
from tiermq.replication.election import Candidate, Decision, LogEnds, Role
from tiermq.replication.epoch_file import EpochEntry, consistent_end
from tiermq.replication.sync_set import SyncSet
from tiermq.tier.driver.contract import ForwardingDriver, StoredObject
from tiermq.tier.driver.memory import MemoryDriver

TICK_MS = 100
TIMES = LeaseTimes(term_s=5.0, renew_s=1.0, margin_s=1.0, look_s=0.5)
RATES = (0.93, 1.07)
"""How fast clocks run: within the margin of a fifth of the term."""


class MemoryFiles:
    """The files of one machine, as far as an election needs them."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def read_config(self, path: str, decode: Callable[[bytes], Any]) -> Any:
        return decode(self._files[path]) if path in self._files else None

    def write_config(self, path: str, data: bytes) -> None:
        self._files[path] = data

    def make_directories(self, path: str) -> None:
        """There is none to make."""


class FaultyBucket(ForwardingDriver):
    """One replica's way to the bucket. `lost`: how many puts land without an answer."""

    lost = 0.02

    def __init__(self, inner: MemoryDriver, chance: random.Random) -> None:
        super().__init__(inner)
        self._chance = chance
        self.is_cut = False
        self.late: list[Callable[[], object]] = []

    def get_object(self, name: str) -> StoredObject | None:
        if self.is_cut or self._chance.random() < 0.02:
            raise TierUnavailable("no answer")
        return super().get_object(name)

    def put_object(self, name: str, data: bytes, **options: Any) -> str:
        if self.is_cut or self._chance.random() < 0.02:
            if self._chance.random() < 0.5:
                self.late.append(lambda: self.inner.put_object(name, data, **options))
            raise TierUnavailable("no answer")
        version = super().put_object(name, data, **options)
        if self._chance.random() < self.lost:
            raise TierUnavailable("the answer was lost")
        return version

    def land(self) -> None:
        """A request that was on its way arrives."""
        if self.late:
            with suppress(ManifestConflict):  # Its version is over: the bucket refuses it.
                self.late.pop(0)()


@dataclass
class History:
    """What clients saw."""

    acknowledged: dict[int, int] = field(default_factory=dict)
    """Messages by offset."""
    longest: list[int] = field(default_factory=list)
    reads: int = 0
    faults: int = 0

    def acknowledge(self, offset: int, message: int) -> None:
        known = self.acknowledged.setdefault(offset, message)
        assert known == message, f"offset {offset} was given to messages {known} and {message}"
        if offset < len(self.longest):
            assert self.longest[offset] == message, f"a read showed {self.longest[offset]} at {offset}, not {message}"

    def read(self, log: list[int]) -> None:
        self.reads += 1
        for offset, message in self.acknowledged.items():
            assert offset < len(log), f"message {message} at {offset} was acknowledged, and a read ends at {len(log)}"
            assert log[offset] == message, f"message {message} at {offset} was acknowledged, and {log[offset]} is read"
        assert log[: len(self.longest)] == self.longest, "a read went back"
        self.longest = list(log)


class SimulatedReplica:
    """One machine: its clock, its log with epochs, which survive a crash, and its process."""

    def __init__(self, name: str, bucket: MemoryDriver, chance: random.Random) -> None:
        self.name = name
        self._chance = chance
        self.clock = ManualClock(chance.randrange(10**9, 10**12))
        self._rate = chance.uniform(*RATES)
        self.driver = FaultyBucket(bucket, chance)
        self._files = MemoryFiles()
        self.log: list[int] = []
        self.epochs: list[EpochEntry] = []
        self.paused_until = 0
        self.is_up = False

    def start(self) -> None:
        self.is_up = True
        self.role, self.epoch, self.master = Role.NONE, 0, ""
        self.shook_hands: tuple[str, int] | None = None
        self.sync: SyncSet | None = None
        self.confirmed = 0
        self.acks: dict[int, int] = {}
        self.pending: list[tuple[int, int]] = []
        self._decided: Decision | None = None
        self._switch_at = 0
        self._next_step = 0
        self.election = BucketElection(
            self.driver, "c", "b", self.name, times=TIMES, clock=self.clock, access=cast(FileAccess, self._files)
        )
        try:
            self.election.join()
        except (TierUnavailable, ManifestConflict):
            self.is_up = False
            return
        self.election._candidate = Candidate(
            address=self.name, ha_address=self.name, ends=self._ends, on_change=self._on_change
        )

    @property
    def last_epoch(self) -> int:
        return self.epochs[-1].epoch if self.epochs else 0

    def _ends(self) -> LogEnds:
        confirmed = self.confirmed if self.role is Role.MASTER else 0
        return LogEnds(len(self.log), min(confirmed, len(self.log)), self.last_epoch)

    def _on_change(self, decision: Decision) -> None:
        self._decided = decision
        if self.role is Role.MASTER and decision.role is Role.MASTER and decision.epoch == self.epoch and self.sync:
            self.sync.note_recorded(decision.members)

    def tick(self, now: int) -> None:
        self.clock.advance_ms(round(TICK_MS * self._rate))
        if self._chance.random() < 0.1:
            self.driver.land()
        if not self.is_up or now < self.paused_until:
            return
        if now >= self._next_step or self.election._wanted is not None:
            rest_s = self.election.run_once()
            self._next_step = now + max(1, int(rest_s * 1000 / TICK_MS))
        self._change_role(now)
        if self.role is Role.MASTER and self.sync is not None:
            _, self.confirmed, wanted = self.sync.advance(
                self.acks, self.confirmed, lambda: len(self.log), self.clock.monotonic(), needed=1
            )
            if wanted is not None:
                self.election.propose(self.epoch, wanted)

    def _change_role(self, now: int) -> None:
        """A change takes a while: the broker is closed and opened."""
        decided = self._decided
        if decided is None:
            return
        is_master = decided.role is Role.MASTER
        if (self.role is Role.MASTER) == is_master and (not is_master or decided.epoch == self.epoch):
            if not is_master and (self.master, self.epoch) != (decided.ha_address, decided.epoch):
                self.master, self.epoch, self.shook_hands = decided.ha_address, decided.epoch, None
            self.role = decided.role
            return
        if not self._switch_at:
            self._switch_at = now + self._chance.randrange(1, 8)
            return
        if now < self._switch_at:
            return
        self._switch_at = 0
        self.role, self.epoch, self.master, self.shook_hands = decided.role, decided.epoch, decided.ha_address, None
        self.pending, self.acks, self.sync = [], {}, None
        if is_master:
            kept = [each for each in self.epochs if each.start <= len(self.log)]
            self.epochs = [*kept, EpochEntry(decided.epoch, len(self.log) if kept else 0)]
            self.confirmed = len(self.log)
            self.sync = SyncSet(self.election.own, 2.0)
            self.sync.note_recorded(decided.members)

    @property
    def may_answer(self) -> bool:
        return self.role is Role.MASTER and self.election.may_acknowledge(self.epoch)

    def put(self, message: int) -> None:
        if self.may_answer:
            self.log.append(message)
            self.pending.append((len(self.log) - 1, message))

    def visible(self) -> list[int]:
        alone = self.sync is not None and self.sync.is_alone
        return self.log if alone else self.log[: self.confirmed]

    def answer(self, history: History) -> None:
        end = len(self.visible())
        while self.pending and self.pending[0][0] < end:
            offset, message = self.pending.pop(0)
            if self.may_answer:
                history.acknowledge(offset, message)

    def fetch(self, master: SimulatedReplica) -> int | None:
        """Copy a part of the master's log; the acknowledgement."""
        if master.role is not Role.MASTER or master.last_epoch < max(self.epoch, self.last_epoch):
            return None
        if self.shook_hands != (master.name, master.last_epoch):
            end = consistent_end(self.epochs, len(self.log), master.epochs, len(master.log))
            if end is None:
                return None
            del self.log[end:]
            self.epochs = [each for each in self.epochs if each.start < end]
            self.shook_hands = (master.name, master.last_epoch)
        have = len(self.log)
        new = master.log[have : have + self._chance.randrange(1, 6)]
        for number in range(len(new)):
            entry = [each for each in master.epochs if each.start <= have + number][-1]
            if entry.epoch > self.last_epoch:
                self.epochs.append(entry)
            self.log.append(new[number])
        return len(self.log)


def simulate(seed: int, ticks: int = 1_500, count: int = 3) -> History:
    """One run. Raises AssertionError when the log is not linearizable."""
    chance = random.Random(seed)
    bucket = MemoryDriver(f"simulated-{seed}")
    history = History()
    replicas = [SimulatedReplica(f"r{number}", bucket, chance) for number in range(count)]
    cuts: dict[frozenset[str], int] = {}
    late: list[tuple[int, SimulatedReplica, int, int, int]] = []
    message = 0
    for now in range(ticks):
        history.faults += _break_something(chance, now, replicas, cuts)
        for each in replicas:
            if not each.is_up and chance.random() < 0.02:
                each.start()
            each.tick(now)
        for each in replicas:
            if not each.is_up or now < each.paused_until:
                continue
            master = next((other for other in replicas if other.name == each.master and other is not each), None)
            if each.role is Role.SLAVE and master is not None and master.is_up and now >= master.paused_until:
                if cuts.get(frozenset((each.name, master.name)), 0) > now:
                    if chance.random() < 0.3:
                        master.acks.pop(each.election.own, None)
                    continue
                acknowledged = each.fetch(master)
                if acknowledged is not None and chance.random() < 0.9:
                    late.append((now + chance.randrange(1, 6), master, master.epoch, each.election.own, acknowledged))
            elif each.role is Role.MASTER:
                for _ in range(chance.randrange(3)):
                    message += 1
                    each.put(message)
                each.answer(history)
                if chance.random() < 0.2:
                    seen = list(each.visible())
                    if each.may_answer:
                        history.read(seen)
        for due in [each for each in late if each[0] <= now]:
            late.remove(due)
            _, master, epoch, replica, acknowledged = due
            if master.is_up and master.role is Role.MASTER and master.epoch == epoch:
                master.acks[replica] = max(acknowledged, master.acks.get(replica, 0))
    return history


def _break_something(
    chance: random.Random, now: int, replicas: list[SimulatedReplica], cuts: dict[frozenset[str], int]
) -> int:
    victim = chance.choice(replicas)
    what = chance.random()
    if what < 0.003:
        victim.is_up = False
    elif what < 0.008:
        victim.paused_until = now + chance.randrange(1, 150)
    elif what < 0.014:
        other = chance.choice(replicas)
        cuts[frozenset((victim.name, other.name))] = now + chance.randrange(1, 120)
    elif what < 0.020:
        victim.driver.is_cut = True
    for each in replicas:
        if each.driver.is_cut and chance.random() < 0.02:
            each.driver.is_cut = False
    return int(what < 0.020)
