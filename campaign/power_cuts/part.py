"""Rounds of power cuts: a disk, processes on it that are acknowledged what they put, and copies of the disk meanwhile.

A process is stopped for the moment of a copy, and everything that it had acknowledged by then must be in the copy, once
it is recovered. Then it goes on, or the machine boots from another copy of that moment, unrecovered, and the next
process goes on there. Acknowledgements come through a pipe and are kept outside of the image.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.part import Finding, Outcome, Part
from campaign.power_cuts import life
from campaign.power_cuts.machine import OPTIONS, Machine, missing_tools
from campaign.power_cuts.transactions import TransactionCuts
from campaign.power_cuts.victims import Victim
from crash import child
from crash.test_kill import Victim as StoreVictim
from crash.test_timer_kill import finish as deliver_timers
from crash.timer_child import SETTINGS as TIMERS
from tiermq.status import GetStatus
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.tiered_store import TieredStore
from tiermq.tier.verify.verify import verify_tier

CUTS = 5
NUMBERS_PER_LIFE = 10_000_000


@dataclass(frozen=True, slots=True)
class Cut:
    """One cut of a round."""

    after: int
    """How many more messages were acknowledged when it came."""
    boots: bool
    """Whether the machine goes on with the copy."""

    def __str__(self) -> str:
        return f"cut after {self.after} more acknowledgements{', and boot from it' if self.boots else ''}"


class PowerCuts(ABC):
    """What all roles share. A role says who loads the disk, and what must be true of a copy."""

    name: str
    title: str
    rounds = 40
    acknowledgements_max = 800

    def missing(self) -> str:
        return missing_tools()

    def round(self, seed: int, scratch: Path) -> Outcome:
        return self._run(seed, scratch, CUTS)

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        """The fewest first cuts of the round after which it is found."""
        for count in range(1, CUTS + 1):
            place = scratch / f"{count}-cuts"
            place.mkdir()
            outcome = self._run(seed, place, count)
            shutil.rmtree(place)
            if outcome.findings:
                return outcome.findings[0]
        return None

    def _run(self, seed: int, scratch: Path, count: int) -> Outcome:
        chance = random.Random(seed)
        options = chance.choice(OPTIONS)
        cuts = [Cut(chance.randrange(1, self.acknowledgements_max), chance.random() < 0.5) for _ in range(count)]
        machine = Machine(scratch, options=options)
        outcome = Outcome()
        role = self.role(chance)
        steps = (f"ext4 mounted with {options or 'its defaults'}", str(role), *map(str, cuts))
        with machine.running():
            for at, cut in enumerate(cuts):
                try:
                    self._cut(machine, role, cut, outcome)
                except AssertionError as error:
                    finding = Finding(role.promise, f"after {cut}: {error}", seed, steps[: at + 3])
                    outcome.findings.append(finding)
                    break
            role.end()
        return outcome

    def _cut(self, machine: Machine, role: Role, cut: Cut, outcome: Outcome) -> None:
        role.load(machine.root, cut.after)
        role.stop()
        copied, kept = machine.place / "copy", machine.place / "kept"
        machine.copy(copied)
        if cut.boots:
            shutil.copyfile(copied, kept)
            role.end()
            machine.boot_from(kept)
        else:
            role.go_on()
        outcome.counts["cuts"] += 1
        with machine.looked_into(copied) as root:
            outcome.counts["messages_checked"] += role.check(root)

    @abstractmethod
    def role(self, chance: random.Random) -> Role: ...


class Role(ABC):
    """A process on the disk, the ones before it, and what they were acknowledged. Used by one thread."""

    promise = "Under SYNC_FLUSH an acknowledged message survives a power cut, once and at its offset."

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.victim: Victim | None = None
        self.lives = 0
        self.sent: set[int] = set()
        self.acknowledged: dict[int, tuple[Any, ...]] = {}
        self._heard = 0

    def load(self, root: Path, acknowledgements: int) -> None:
        """Until so many more messages were acknowledged."""
        if self.victim is None:
            self.lives += 1
            self.victim = Victim(self.command(root))
            self._heard = 0
        self.victim.listen(acknowledgements)

    def stop(self) -> None:
        assert self.victim is not None
        self.victim.stop()
        self._hear()

    def go_on(self) -> None:
        assert self.victim is not None
        self.victim.go_on()

    def end(self) -> None:
        if self.victim is not None:
            self.victim.kill()
            self.victim = None

    def _hear(self) -> None:
        assert self.victim is not None
        for line in self.victim.lines[self._heard :]:
            word, number, *place = line.split()
            if word == "S":
                self.sent.add(int(number))
            else:
                self.acknowledged[int(number)] = self.place_of(place)
        self._heard = len(self.victim.lines)

    def place_of(self, words: list[str]) -> tuple[Any, ...]:
        return tuple(map(int, words))

    @abstractmethod
    def command(self, root: Path) -> list[str]: ...

    @abstractmethod
    def check(self, root: Path) -> int:
        """How many messages were looked at. Raises AssertionError where the promise does not hold."""


class StoreRole(Role):
    """tests/crash/child.py: three threads that put single messages, lists and batches."""

    def __init__(self, chance: random.Random, settings: dict[str, Any]) -> None:
        super().__init__(chance)
        self.settings = settings
        self.min_physical = 0

    def __str__(self) -> str:
        return f"a store with {self.settings}"

    def command(self, root: Path) -> list[str]:
        order = {
            "root": str(root / "store"),
            "mode": "produce",
            "seed": self.chance.randrange(2**32),
            "first_number": self.lives * NUMBERS_PER_LIFE,
            "calls": 0,
            "settings": self.settings,
        }
        return [sys.executable, child.__file__, json.dumps(order)]

    def place_of(self, words: list[str]) -> tuple[Any, ...]:
        return (words[0], *map(int, words[1:]))

    def check(self, root: Path) -> int:
        found = StoreVictim(root / "store", self.chance.randrange(2**32), self.settings)
        found.sent, found.acknowledged = self.sent, self.acknowledged
        found.min_physical = self.min_physical
        found.check()
        self.min_physical = found.min_physical
        return len(self.acknowledged)


class StoreCuts(PowerCuts):
    name = "power-cuts"
    title = "a real ext4 loses its power under a store"

    def __init__(self, *settings: dict[str, Any]) -> None:
        pool = {"transient_store_pool_enable": True, "transient_store_pool_size": 2}
        crc = {"enabled_append_prop_crc": True, "force_verify_prop_crc": True}
        sync = {"flush_disk_type": "SYNC_FLUSH"}
        self._settings = settings or (sync, {**sync, **pool}, {**sync, **crc})

    def role(self, chance: random.Random) -> Role:
        return StoreRole(chance, chance.choice(self._settings))


class TierRole(Role):
    """See `life`: what the tier has is evicted from the store, so that the tier must have it after a cut."""

    promise = "What was acknowledged is in the store or in its tier after a power cut, once and in order."

    def __str__(self) -> str:
        return "a store that tiers to the same disk and evicts"

    def command(self, root: Path) -> list[str]:
        first = str(self.lives * NUMBERS_PER_LIFE)
        return [sys.executable, "-m", "campaign.power_cuts.life", "tier", str(root), first]

    def check(self, root: Path) -> int:
        places = {(queue, offset): number for number, (queue, offset) in self.acknowledged.items()}
        end_lease((root / "tier").as_uri())
        with life.opened(root) as store:
            found: dict[tuple[int, int], int] = {}
            for queue_id in range(life.QUEUES):
                begin = store.min_offset("orders", queue_id)
                assert begin <= 0, f"queue {queue_id} begins at {begin}"
                found |= self._read(store, queue_id)
            assert len(set(found.values())) == len(found), "a message is there twice"
            lost = {place: number for place, number in places.items() if found.get(place) != number}
            assert not lost, f"{len(lost)} of {len(places)} acknowledged are lost or moved, such as {sorted(lost)[:3]}"
            assert store.flush_to_tier(120), "what is there cannot be brought to the tier"
        problems = verify_tier(open_driver((root / "tier").as_uri())).problems
        assert not problems, f"the tier does not agree with itself: {problems[:3]}"
        return len(found)

    def _read(self, store: TieredStore, queue_id: int) -> dict[tuple[int, int], int]:
        found = {}
        offset = 0
        while offset < store.max_offset("orders", queue_id):
            page = store.get("orders", queue_id, offset)
            assert page.status is GetStatus.FOUND, f"queue {queue_id}, offset {offset}: {page}"
            for message in page.messages:
                number = int(message.body.split()[0])
                assert message.queue_offset == offset, f"queue {queue_id}: {message.queue_offset} at {offset}"
                assert message.body == life.body_of(number), f"queue {queue_id}, offset {offset}: other bytes"
                assert number in self.sent, f"{number} was never sent"
                found[queue_id, offset] = number
                offset += 1
        return found


def end_lease(tier: str) -> None:
    """Its holder is dead, and the copy of its disk is mounted elsewhere: to the lease that is another holder."""
    lease = BrokerLease(open_driver(tier), "DefaultCluster", "broker-a", "the one who looks into the copy")
    lease.acquire(force=True)
    lease.release()


class TierCuts(PowerCuts):
    name = "power-cuts-tier"
    title = "a real ext4 loses its power under a store whose tier is on it, too"

    def role(self, chance: random.Random) -> Role:
        return TierRole(chance)


class TimerRole(Role):
    promise = "A timer that was acknowledged under SYNC_FLUSH is delivered after a power cut, and never early."

    def __str__(self) -> str:
        return "a store with timers"

    def command(self, root: Path) -> list[str]:
        first = str(self.lives * NUMBERS_PER_LIFE)
        return [sys.executable, "-m", "campaign.power_cuts.life", "timers", str(root), first]

    def check(self, root: Path) -> int:
        delivered = deliver_timers(root / "store")
        lost = self.acknowledged.keys() - {number for number, _, _ in delivered}
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} were never delivered, such as {sorted(lost)[:3]}"
        early = [number for number, out_ms, left_ms in delivered if left_ms < out_ms + TIMERS.precision_ms]
        assert not early, f"{len(early)} were delivered early, such as {early[:3]}"
        unknown = {number for number, _, _ in delivered} - self.sent
        assert not unknown, f"delivered, and never sent: {sorted(unknown)[:3]}"
        return len(delivered)


class TimerCuts(PowerCuts):
    name = "power-cuts-timers"
    title = "a real ext4 loses its power under timers"
    rounds = 20
    acknowledgements_max = 400

    def role(self, chance: random.Random) -> Role:
        return TimerRole(chance)


PARTS: list[Part] = [StoreCuts(), TierCuts(), TimerCuts(), TransactionCuts()]
