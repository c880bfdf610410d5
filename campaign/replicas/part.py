"""ReplicaFaults: machines, networks and the bucket fail under three replicas of a broker and its clients.

A round: three replicas are started, and live through several runs. In a run clients write and read, a schedule of
faults by the seed passes, and everything heals. Then all replicas are in sync again, every message that was ever
acknowledged is in every later read, once, at one offset, offsets are unbroken, and the logs of the replicas are the
same bytes. At the end of the round all replicas are killed, and each store is opened and read as well.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path

from campaign.networks.proxy import Weather
from campaign.part import Finding, Outcome, Part
from campaign.replicas.cluster import SIZES, TERM_S, Cluster, Plan, Replica
from campaign.replicas.ledger import QUEUES, TOPIC, Ledger, Place, read, read_all, write
from campaign.replicas.namespaces import STORE, apart
from campaign.replicas.namespaces import missing as missing_namespaces
from servers.seaweedfs import missing as missing_server
from tiermq.errors import RemotingError, TierMQError
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.store.local_store import LocalStore
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.tiered_store import TieredStore

RUNS = 5
FAULTS_MIN, FAULTS_MAX = 2, 5
SPAN_S = 4.0
HEAL_S = 300.0
LOOK_S = 0.1
KINDS = ("directory", "directory", "directory", "lease", "tier", "tier", "tier")
PROMISE = "Replicas that elect their master lose no acknowledged message, and no read goes back"


@dataclass(frozen=True, slots=True)
class Step:
    """A fault of a replica (by number; None: whichever is the master then) that begins and ends."""

    begin_s: float
    length_s: float
    fault: str
    victim: int | None
    other: int

    def __str__(self) -> str:
        victim = "the master" if self.victim is None else f"replica {self.victim + 1}"
        other = f", {self.other + 1}" if "pair" in self.fault or "one way" in self.fault else ""
        return f"{self.begin_s:.2f} s, for {self.length_s:.2f} s: {self.fault} ({victim}{other})"


FAULTS = ("kill", "kill", "stop", "stop", "unplug", "unplug", "cut pair", "cut one way", "end", "hand over", "kill all")
BUCKET_FAULTS = ("no bucket", "no bucket", "bucket silent", "bucket refuses", "bucket slow")
CLEANING_FAULTS = ("clean", "clean", "clean", "clean")
"""As faults: at any time each replica is asked to delete what may go."""


def planned(seed: int) -> tuple[Plan, list[list[Step]]]:
    """What a seed stands for: how the cluster is set up, and the faults of each run."""
    chance = random.Random(seed)
    plan = Plan(chance.choice(KINDS), chance.choice(["SYNC_FLUSH", "ASYNC_FLUSH"]), chance.choice([1, 1, 2]))
    plan = replace(plan, slave_reads=chance.random() < 0.5)
    if plan.kind == "tier":
        plan = replace(plan, cleans=chance.random() < 0.8, lags=chance.random() < 0.5)
    faults: tuple[str, ...] = FAULTS if plan.kind == "directory" else FAULTS + BUCKET_FAULTS
    faults += CLEANING_FAULTS if plan.cleans else ()
    return plan, [_steps(chance, faults) for _ in range(RUNS)]


def _steps(chance: random.Random, faults: tuple[str, ...]) -> list[Step]:
    steps = [
        Step(
            chance.uniform(0, SPAN_S),
            chance.choice([chance.uniform(0.2, TERM_S), chance.uniform(TERM_S, 1.5 * TERM_S)]),
            chance.choice(faults),
            None if chance.random() < 0.6 else chance.randrange(3),
            chance.randrange(3),
        )
        for _ in range(chance.randint(FAULTS_MIN, FAULTS_MAX))
    ]
    return sorted(steps, key=lambda step: step.begin_s)


class ReplicaFaults:
    """See the module."""

    name = "replicas"
    title = "three replicas in network namespaces: kill -9, SIGSTOP past the lease, cut networks, S3 away, under load"
    rounds = 40

    def missing(self) -> str:
        return missing_namespaces() or missing_server()

    def round(self, seed: int, scratch: Path) -> Outcome:
        return self.run(seed, scratch, *planned(seed))

    def run(self, seed: int, scratch: Path, plan: Plan, runs: list[list[Step]]) -> Outcome:
        """One round with a schedule of one's own."""
        outcome = Outcome()
        wrong: list[str] = apart(lambda: _live(scratch, plan, runs, seed, outcome))
        outcome.counts["rounds"] += 1
        outcome.counts[f"rounds_with_{plan.kind}"] += 1
        steps = [str(plan), *(f"run {number}: {step}" for number, run in enumerate(runs, 1) for step in run)]
        outcome.findings += [Finding(PROMISE, each, seed, tuple(steps)) for each in wrong[:5]]
        return outcome

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        """The fewest first runs of the round after which it is found; real processes do not repeat exactly."""
        plan, runs = planned(seed)
        for count in range(len(runs) + 1):
            place = scratch / f"{count}-runs"
            place.mkdir()
            outcome = self.run(seed, place, plan, runs[:count])
            if outcome.findings:
                return outcome.findings[0]
        return None


def _live(scratch: Path, plan: Plan, runs: list[list[Step]], seed: int, outcome: Outcome) -> list[str]:
    """What is wrong in the end."""
    ledger = Ledger()
    with Cluster(scratch, plan) as cluster:
        for each in cluster.replicas:
            each.start()
        _wait(lambda: "" if cluster.master() is not None else "no master", "there is a master at the start")
        for number, steps in enumerate(runs):
            _run(cluster, steps, seed + number * QUEUES, ledger)
            outcome.counts["runs"] += 1
            outcome.counts["faults_injected"] += len(steps)
            outcome.counts.update(step.fault.replace(" ", "_") for step in steps)
            if ledger.problems:
                break
        for each in cluster.replicas:
            each.end()
        outcome.counts["exits"] += sum(each.exits for each in cluster.replicas)
        for each in cluster.replicas:
            try:
                ledger.check_all(_stored(each.store, cluster.tier()), each.store.name)
            except TierMQError as error:
                ledger.problems.append(f"{each.store.name}: it cannot be opened: {error}")
    outcome.counts["messages_checked"] += len(ledger.known)  # Each once, however often it was read.
    outcome.counts.update(ledger.counts)
    return ledger.problems


def _run(cluster: Cluster, steps: list[Step], seed: int, ledger: Ledger) -> None:
    """Faults under load, then everything heals, and all that is known is there."""
    ledger.over.clear()
    clients = _clients(cluster, seed, ledger)
    try:
        _wait(lambda: _more(cluster, ledger, 10), "sends are acknowledged")
        _pass(cluster, steps)
        cluster.heal()
        _wait(lambda: _more(cluster, ledger, 10), "sends are acknowledged again")
    finally:
        ledger.over.set()
        for thread in clients:
            thread.join()
    _wait(cluster.why_not_equal, "replicas are in sync again")
    master = cluster.master()
    ledger.check_all({} if master is None else read_all(master.address), "the master")
    _wait(lambda: _unequal_logs(cluster, ledger), "replicas have the same log")


def _unequal_logs(cluster: Cluster, ledger: Ledger) -> str:
    """What is missing until the logs are the same: a master adds records of its tables, and others follow. Other bytes
    are a problem, whatever follows. Each log is compared from where it begins: its files may be deleted.
    """
    logs = [_log_bytes(each.store) for each in cluster.replicas]
    ends = [begin + len(data) for begin, data in logs]
    for (first, ours), (second, theirs) in combinations(logs, 2):
        low, high = max(first, second), min(first + len(ours), second + len(theirs))
        if low < high and ours[low - first : high - first] != theirs[low - second : high - second]:
            ledger.problems.append(f"the logs of the replicas differ between {low} and {high}; they end at {ends}")
            return ""
    return "" if len(set(ends)) == 1 else f"logs up to {ends}"


def _wait(why_not: Callable[[], str], what: str) -> None:
    """Raises AssertionError when it does not become so."""
    given_up_s = time.monotonic() + HEAL_S
    while reason := why_not():
        if time.monotonic() > given_up_s:
            raise AssertionError(f"expected that {what} within {HEAL_S:g} s, found {reason}")
        time.sleep(LOOK_S)


def _more(cluster: Cluster, ledger: Ledger, count: int) -> str:
    """Empty once so many more messages were acknowledged since the call before that returned nothing."""
    for each in cluster.replicas:
        each.keep_running()
    if ledger.counts["acknowledged"] < ledger.counts["awaited"] + count:
        return f"{ledger.counts['acknowledged']} acknowledged; {cluster.why_not_equal()}"
    ledger.counts["awaited"] = ledger.counts["acknowledged"]
    return ""


def _clients(cluster: Cluster, seed: int, ledger: Ledger) -> list[threading.Thread]:
    addresses = [each.address for each in cluster.replicas]
    works: list[Callable[[], None]] = [
        lambda queue=queue: write(queue, addresses, cluster.master_address, seed + queue, ledger)  # type: ignore[misc]
        for queue in range(QUEUES)
    ]
    works.append(lambda: read(addresses, seed, ledger, slave_reads=cluster.plan.slave_reads))

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            ledger.problems.append(f"{threading.current_thread().name}: {error!r}")

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    return threads


def _pass(cluster: Cluster, steps: list[Step]) -> None:
    """Begin and end the faults at their times."""
    began_s = time.monotonic()
    ends: list[tuple[float, Callable[[], None]]] = []
    begins = list(steps)
    while begins or ends:
        due_s = min([step.begin_s for step in begins[:1]] + [end_s for end_s, _ in ends])
        time.sleep(max(0.0, min(LOOK_S, due_s - (time.monotonic() - began_s))))
        now_s = time.monotonic() - began_s
        for each in [end for end in ends if end[0] <= now_s]:
            ends.remove(each)
            each[1]()
        while begins and begins[0].begin_s <= now_s:
            step = begins.pop(0)
            ends.append((now_s + step.length_s, _begin(cluster, step)))
        for replica in cluster.replicas:
            replica.keep_running()


def _begin(cluster: Cluster, step: Step) -> Callable[[], None]:
    """Do it; what ends it is returned."""
    replicas = cluster.replicas
    victim = (cluster.master() if step.victim is None else None) or replicas[step.victim or 0]
    other = next(each for each in replicas[step.other :] + replicas if each is not victim)
    match step.fault:
        case "kill" | "kill all" | "end":
            victims = replicas if step.fault == "kill all" else [victim]
            for each in victims:
                each.end(signal.SIGTERM if step.fault == "end" and not each.is_stopped else signal.SIGKILL)
            return partial(_start, victims)
        case "stop":
            victim.stop()
            return victim.go_on
        case "unplug":
            victim.machine.unplug()
        case "cut pair":
            victim.machine.lose(other.machine.address)
            other.machine.lose(victim.machine.address)
            return partial(_heal, victim, other)
        case "cut one way":
            victim.machine.lose(other.machine.address)
        case "no bucket":
            victim.machine.lose(STORE)
        case "hand over":
            _demote(victim)
        case "clean":
            for each in replicas:
                _command(each, RequestCode.DELETE_EXPIRED_COMMITLOG)
        case "bucket silent":
            cluster.set_store(Weather(hold_up=True))
            return cluster.set_store
        case "bucket refuses":
            cluster.set_store(Weather(refuse=True))
            return cluster.set_store
        case "bucket slow":
            cluster.set_store(Weather(delay_s=0.15))
            return cluster.set_store
    return victim.machine.heal


def _start(replicas: list[Replica]) -> None:
    for each in replicas:
        if not each.is_running:
            each.start()


def _heal(*replicas: Replica) -> None:
    for each in replicas:
        each.machine.heal()


def _demote(replica: Replica) -> None:
    """A replica that is no master refuses it."""
    _command(replica, RequestCode.DEMOTE_BROKER)


def _command(replica: Replica, code: RequestCode) -> None:
    host, _, port = replica.address.rpartition(":")
    try:
        with BlockingClient(host, int(port), timeout_s=1.0) as client:
            client.oneway(RemotingCommand(code))
    except (RemotingError, OSError):
        return  # It is away: that is a fault of its own.


def _log_bytes(store: Path) -> tuple[int, bytes]:
    """From where it begins; again if a file was deleted meanwhile."""
    while True:
        files = sorted((store / "commitlog").iterdir())
        try:
            data = b"".join(path.read_bytes() for path in files)
        except FileNotFoundError:
            continue
        return (int(files[0].name) if files else 0), data.rstrip(b"\0")


def _stored(path: Path, tier: TierDriver | None) -> dict[Place, bytes]:
    """What a replica has in its log or in the tier."""
    found: dict[Place, bytes] = {}
    with ExitStack() as opened:
        store: LocalStore | TieredStore
        if tier is None:
            store = opened.enter_context(LocalStore.open(path, **SIZES))
        else:
            opened.callback(tier.close)
            store = TieredStore.open(path, driver=tier, reader=True, broker_name="b1", **SIZES)
            opened.callback(store.close)
        for queue in range(QUEUES):
            offset = max(0, store.min_offset(TOPIC, queue))
            while page := store.get(TOPIC, queue, offset, 1_000).messages:
                found |= {(queue, each.queue_offset): each.body for each in page}
                offset = page[-1].queue_offset + 1
    return found


PARTS: list[Part] = [ReplicaFaults()]
