"""Power cuts under a broker with transactions: those of tests/crash/test_transaction_kill.py, over a machine's disk."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path

from broker.delivery.transaction_peer import COMMIT, ROLLBACK
from campaign.part import Finding, Outcome
from campaign.power_cuts.machine import OPTIONS, Machine, missing_tools
from campaign.power_cuts.victims import stop
from crash.test_transaction_kill import Victim, decision

CUTS = 3


class Broker(Victim):
    """A broker on a machine's disk."""

    def __init__(self, machine: Machine, seed: int) -> None:
        super().__init__(machine.root / "store", "SYNC_FLUSH", seed)
        self.machine = machine

    def cut_power_while_producing(self) -> None:
        copied = self.machine.place / "cut"
        with self.broker() as (process, address):
            threads = [threading.Thread(target=self.produce, args=(address, f"p{each}")) for each in range(2)]
            for thread in threads:
                thread.start()
            for _ in range(self.random.randrange(10, 80)):
                self.enough.acquire()
            stop(process.pid)
            self.machine.copy(copied)
            process.send_signal(signal.SIGKILL)
            for thread in threads:
                thread.join()
        self.machine.boot_from(copied)


class TransactionCuts:
    """Each round is a few cuts, one after the other, and then a broker that asks about what is open."""

    name = "power-cuts-transactions"
    title = "a real ext4 loses its power under a broker with transactions"
    rounds = 20

    def missing(self) -> str:
        return missing_tools()

    def round(self, seed: int, scratch: Path) -> Outcome:
        return self._run(seed, scratch, CUTS)

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        """With one cut, if that finds it as well."""
        found = self._run(seed, scratch, 1).findings
        return found[0] if found else None

    def _run(self, seed: int, scratch: Path, cuts: int) -> Outcome:
        chance = random.Random(seed)
        options = chance.choice(OPTIONS)
        machine = Machine(scratch, options=options)
        outcome = Outcome()
        with machine.running():
            victim = Broker(machine, chance.randrange(2**32))
            for _ in range(cuts):
                victim.cut_power_while_producing()
                outcome.counts["cuts"] += 1
            found = victim.settle()
        outcome.counts["messages_checked"] += len(victim.prepared)
        steps = (f"ext4 mounted with {options or 'its defaults'}", f"{cuts} cuts")
        outcome.findings += [Finding(promise, text, seed, steps) for promise, text in _judged(victim, found)]
        return outcome


def _judged(victim: Broker, found: list[int]) -> list[tuple[str, str]]:
    committed = {number for number, how in victim.ended.items() if how == COMMIT}
    promised = committed | {number for number in victim.prepared if decision(number) == COMMIT}
    reported = []
    if lost := promised - set(found):
        reported.append(("A commit that was acknowledged is delivered.", f"{len(lost)} were not: {sorted(lost)[:5]}"))
    if wrong := [number for number in found if decision(number) == ROLLBACK]:
        reported.append(("What was rolled back never appears.", f"it did: {wrong[:5]}"))
    reported += [("No producer is asked about what was rolled back.", problem) for problem in victim.problems]
    return reported
