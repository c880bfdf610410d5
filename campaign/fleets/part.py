"""A fleet into a bucket, while processes are killed: `python3 dev.py prove --part fleet`.

    begin a load ─► kill a process by chance, one to three times ─► end the load ─► wait until the tier has it ─► check

The servers live from the first round to the end of the campaign, and histories grow over all rounds; each round has its
own load. By chance a round ends with RocketMQ's own retention: from then on the tier alone has what it checks. Every
tenth round everything since the first one is checked.
"""

from __future__ import annotations

import atexit
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from campaign.fleets.check import TierCheck
from campaign.fleets.fleet import KINDS, QUEUES, TIER, TOPIC, Fleet, TierMQBroker, missing
from campaign.fleets.load import Acknowledged
from campaign.part import Finding, Outcome, Part

FAULTS_MAX = 3
ACKNOWLEDGEMENTS_MAX = 200
AWAY_MAX = 300
WHOLE_CHECK_EVERY = 10
WAVES_MAX = 30
"""The tier has everything after so many waves of the job, however long they take."""
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a round."""

    victim: str
    after: int
    """How many more messages were acknowledged."""
    away: int
    """How many more before an object store is started again."""

    def __str__(self) -> str:
        return f"kill the {self.victim} after {self.after} more acknowledgements"


@dataclass(slots=True)
class _World:
    fleet: Fleet
    check: TierCheck
    rounds: int = 0


class FleetKills:
    """One world for all rounds of a process: starting it takes longer than many rounds."""

    name = "fleet"
    title = "brokers, executors, driver and S3 of an offload of RocketMQ's and TierMQ's brokers are killed"
    rounds = 100

    def __init__(self) -> None:
        self._world: _World | None = None

    def missing(self) -> str:
        return missing()

    def shrink(self, seed: int, scratch: Path) -> Finding | None:  # noqa: ARG002
        """Not shortened: what a round finds depends on what earlier ones left."""
        return None

    def round(self, seed: int, scratch: Path) -> Outcome:
        world = self._world or self._begin(scratch.parent / "fleet-servers")
        chance = random.Random(seed)
        faults = [
            Fault(chance.choice(KINDS), chance.randrange(1, ACKNOWLEDGEMENTS_MAX), chance.randrange(1, AWAY_MAX))
            for _ in range(chance.randrange(1, FAULTS_MAX + 1))
        ]
        outcome = Outcome()
        try:
            problems = self._run(world, f"r{seed}", faults, chance, outcome)
        except BaseException:
            world.fleet.keep_logs(scratch / "servers")
            self._end()  # Whatever is left of it cannot be trusted; the next round has a new one.
            raise
        steps = tuple(map(str, faults))
        promise = "Every acknowledged message is in the tier once, in order, by offset, time and key."
        outcome.findings += [Finding(promise, found, seed, steps) for found in problems]
        if problems:
            world.fleet.keep_logs(scratch / "servers")
            self._end()
        return outcome

    def _begin(self, directory: Path) -> _World:
        shutil.rmtree(directory, ignore_errors=True)
        fleet = Fleet(directory)
        fleet.start()
        atexit.register(self._end)
        self._world = _World(fleet, TierCheck(TIER, TOPIC))
        while not fleet.metrics_file.exists():  # Before the first wave there is no executor to kill.
            time.sleep(_POLL_S)
            fleet.keep_driver()
        return self._world

    def _end(self) -> None:
        world, self._world = self._world, None
        if world is not None:
            world.fleet.close()

    def _run(self, world: _World, name: str, faults: list[Fault], chance: random.Random, outcome: Outcome) -> list[str]:
        fleet, check, counts = world.fleet, world.check, outcome.counts
        starts, ends, asked = fleet.driver_starts, len(fleet.driver_ends), (check.keys_asked, check.times_asked)
        checked, asked_again = check.messages_checked, fleet.asked_again
        began_s = time.monotonic()
        fleet.load.start(TOPIC, name, fleet.names, queues=QUEUES)
        for fault in faults:
            fleet.load.wait(fault.after)
            killed = fleet.kill(fault.victim, chance)
            counts[f"killed: {fault.victim}"] += killed
            counts["kills"] += killed
            if fault.victim == "object store":
                fleet.load.wait(fault.away)
                fleet.start_store()
        fleet.load.wait(chance.randrange(1, ACKNOWLEDGEMENTS_MAX))
        load = fleet.load.stop()
        counts["messages_acknowledged"] += load.count
        counts["sends_that_failed"] += load.failed
        counts["seconds_of_load"] += round(-began_s + (began_s := time.monotonic()))
        problems = self._wait(world, load)
        counts["seconds_until_copied"] += round(-began_s + (began_s := time.monotonic()))
        problems = problems or check.check(load, chance)
        problems += [f"a driver ended with {code}" for code in fleet.driver_ends[ends:] if code not in (0, 1)]
        for metric in ("gaps", "queues_refused"):
            found = {broker: value for broker, value in fleet.metric(f"tiermq_offload_{metric}").items() if value}
            problems += [f"{metric}: {found}"] if found else []
        if not problems:
            problems = self._old_history(world, chance, outcome)
        counts["seconds_of_checks"] += round(time.monotonic() - began_s)
        counts["drivers_started"] += fleet.driver_starts - starts
        counts["drivers_that_gave_up"] += len(fleet.driver_ends) - ends
        counts["messages_checked"] += check.messages_checked - checked
        counts["keys_asked"] += check.keys_asked - asked[0]
        counts["cold_reads_asked_again"] += fleet.asked_again - asked_again
        counts["times_asked"] += check.times_asked - asked[1]
        return problems

    def _wait(self, world: _World, load: Acknowledged) -> list[str]:
        """Until the tier has the load; [] then. It is looked at after each wave of the job."""
        waves: set[float] = set()
        while not world.check.has(load):
            seen = len(waves)
            while len(waves) == seen:
                time.sleep(_POLL_S)
                world.fleet.keep_driver()
                waves.update(world.fleet.metric("tiermq_offload_wave_timestamp_seconds").values())
            if len(waves) > WAVES_MAX:
                behind = {queue: max(numbers) + 1 for queue, numbers in load.numbers.items()}
                return [f"after {WAVES_MAX} waves the tier has {world.check.ends()}, and {behind} were acknowledged"]
        return []

    def _old_history(self, world: _World, chance: random.Random, outcome: Outcome) -> list[str]:
        """By chance let brokers delete what they have; now and then read everything again."""
        world.rounds += 1
        fleet, problems = world.fleet, []
        if chance.random() < 0.25:
            fleet.delete_local_files()
            outcome.counts["retentions"] += 1
        if world.rounds % WHOLE_CHECK_EVERY == 0:
            problems = world.check.check_all()
            outcome.counts["whole_checks"] += 1
        for broker in fleet.brokers:
            kind = "tiermq" if isinstance(broker, TierMQBroker) else "rocketmq"
            name = f"bytes_deleted_by_a_{kind}_broker"
            outcome.peaks[name] = max(fleet.log_begin(broker), outcome.peaks.get(name, 0))
            if isinstance(broker, TierMQBroker):
                problems += self._cold_read(world, broker, chance)
                outcome.counts["cold_reads"] += 1
        return problems

    def _cold_read(self, world: _World, broker: TierMQBroker, chance: random.Random) -> list[str]:
        """A consumer of the broker gets messages that its disk does not have any more."""
        load = world.check.loads[0]
        queue = (broker.name, chance.randrange(QUEUES))
        offset = min(load.numbers[queue])
        found, expected = world.fleet.key_at(broker, queue[1], offset), load.key(queue, offset)
        return [] if found == expected else [f"{queue}: a consumer of offset {offset} got {found}, not {expected}"]


PARTS: list[Part] = [FleetKills()]
