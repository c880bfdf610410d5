"""Replicas of one broker in simulated time: the product's replication over made-up disks, networks, clocks and bucket.

Real: `ElectedBroker`, `Replication`, `HaMaster`, `HaSlave`, `BucketElection`, `SyncSet`, `EpochFile`, all with their
own threads and loops (`simulated_threads`). Made up: the bytes of a log and its flushes (`Disk`, `SimulatedLog`),
sockets (`simulated_network`), the way to the bucket (`SlowBucket`), and clients.

Everything that may go wrong does, by one seed: processes are killed and paused, machines lose power and what was not
flushed, networks are cut, one way or both, requests to the bucket are slow, fail, land without an answer, or land late;
clocks begin anywhere and run unequally fast, within what the margin allows.

`History` checks linearizability of the log: an acknowledged message is in every later read, once, at one offset; a read
never shows less, or something else, than an earlier one.
"""

from __future__ import annotations

import gc
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from simulation.simulated_log import Disk, SimulatedLog, records_from
from simulation.simulated_network import Listener, Network, Socket
from simulation.simulated_threads import MachineClock, Process, World, product_threads
from tiermq import service
from tiermq.broker import elected_broker
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.elected_broker import ElectedBroker
from tiermq.broker.replication.replication import Elected, HaSocket, Replication, Term
from tiermq.config import BrokerRole, StoreConfig
from tiermq.errors import ManifestConflict, ReplicationError, RequestRefused, TierError, TierUnavailable
from tiermq.files.file_access import FileAccess
from tiermq.metrics import Registry
from tiermq.replication import ha_master, ha_slave
from tiermq.replication.bucket_election import BucketElection, LeaseTimes
from tiermq.replication.epoch_file import EpochFile
from tiermq.store.local_store import LocalStore
from tiermq.tier.driver.contract import ForwardingDriver, StoredObject
from tiermq.tier.driver.memory import MemoryDriver

TIMES = LeaseTimes(term_s=5.0, renew_s=1.0, margin_s=1.0, look_s=0.3)
RATES = (0.9, 1.1)
"""How fast clocks run: within the margin of a fifth of the term."""
REQUEST_S = 1.0
"""After so long a request to the bucket is given up."""
BURST = 60
"""So many messages are sent at once, now and then; no sender waits for an answer before the next one."""
FRAME_BYTES = 150
MESSAGE_BYTES_MAX = 5 * FRAME_BYTES
EPOCHS = "epochs"
ACTIVE_S, CALM_S = 60.0, 90.0
"""How long things go wrong, and how long replicas may take to be equal after that."""


class SlowBucket(ForwardingDriver):
    """One process's way to the bucket: each request takes a while there and a while back."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.cluster.bucket)
        self._machine = machine
        self._world = machine.cluster.world

    def close(self) -> None:
        """Others use it."""

    def get_object(self, name: str) -> StoredObject | None:
        self._travel()
        found = self.inner.get_object(name)
        self._travel()
        return found

    def put_object(self, name: str, data: bytes, **options: Any) -> str:
        chance = self._world.chance

        def land() -> None:
            with suppress(ManifestConflict):  # Its version is over: the bucket refuses it.
                self.inner.put_object(name, data, **options)

        try:
            self._travel()
        except TierUnavailable:
            if chance.random() < 0.5:
                self._world.later(chance.uniform(0, 8.0), land)
            raise
        version = self.inner.put_object(name, data, **options)
        match self._machine.next_answer:
            case "lost":
                self._machine.next_answer = "last"
                self._machine.no_bucket_until_s = self._world.now_s + chance.uniform(0.2, 3.5)
                raise TierUnavailable("the answer was lost")
            case "slow":
                self._world.sleep(chance.uniform(0.5, REQUEST_S))
                self._machine.cluster.part_from_all(self._machine)
            case "last":
                self._machine.cluster.part_from_all(self._machine)
            case _:
                self._travel()  # The answer may be lost.
        self._machine.next_answer = ""
        return version

    def _travel(self) -> None:
        world, machine = self._world, self._machine
        chance, now_s = world.chance, world.now_s
        slow_s = chance.uniform(0.1, 0.9) if machine.slow_until_s > now_s else 0.0
        if machine.no_bucket_until_s > now_s or chance.random() < 0.01:
            world.sleep(REQUEST_S)
            raise TierUnavailable("no answer")
        world.sleep(chance.uniform(0.005, 0.06) + slow_s)


class SimulatedBroker:
    """What `ElectedBroker` opens: the real `Replication` over a simulated log."""

    def __init__(self, machine: Machine, config: BrokerConfig, elected: Elected) -> None:
        world, process = machine.cluster.world, machine.process
        assert process is not None
        self.log = log = SimulatedLog(world, process, machine.disk, elected.role)
        self.epoch = elected.decision.epoch
        term = Term(self.epoch, machine.epochs(), elected.decision.replica_id, elected.election)
        ha = HaSocket(None)
        if elected.role is BrokerRole.SYNC_MASTER:
            listening = Listener(machine.cluster.network, machine.name, config.ha_listen_port, process)
            ha = HaSocket(cast(socket.socket, listening))
        self.is_master = ha.socket is not None
        self.replication = Replication(
            cast(LocalStore, log), elected.applied_to(config), machine.clock, ha, Registry(), term
        )
        self.store = log
        self.metrics_port: int | None = None
        self.owes_answers = False
        self.parts = SimpleNamespace(
            tiered=None,
            local=log,
            metrics=Registry(),
            server=SimpleNamespace(may_answer=lambda: elected.election.may_acknowledge(self.epoch)),
        )
        self.is_serving = False
        self.pending: list[tuple[int, int]] = []

    def start(self) -> None:
        self.replication.start()
        self.is_serving = True

    def stop(self, _drain_s: float = 0.0) -> None:
        self.is_serving = False
        self.replication.stop()
        self.log.close()

    @property
    def may_answer(self) -> bool:
        return bool(self.is_serving and self.is_master and self.parts.server.may_answer())

    def put(self, message: int, filler_bytes: int) -> None:
        if self.may_answer and not self.log.draining and not self.log.few_replicas:
            self.pending.append((self.log.put(message, filler_bytes), message))

    def answer(self) -> list[tuple[int, int]]:
        """Offsets and messages whose acknowledgements leave now; what may not leave is dropped."""
        count = 0
        self.log.dispatch()
        while count < len(self.pending) and self.pending[count][0] <= self.log.dispatched_where:
            count += 1
        done, self.pending = self.pending[:count], self.pending[count:]
        return [(self.log.place_of(end), message) for end, message in done] if self.may_answer else []


class SimulatedKeeper(ElectedBroker):
    """An `ElectedBroker` that takes no ports of this machine, and cuts a simulated log."""

    machine: Machine

    def _reserve(self, config: BrokerConfig) -> BrokerConfig:
        return config

    def _cut(self, offset: int) -> None:
        disk = self.machine.disk
        if disk.whole_end() != len(disk.data) or offset not in (0, *(end for end, _ in records_from(disk.data, 0))):
            raise ReplicationError(f"expected the end of a record, found {offset}")
        del disk.data[offset:]
        disk.flushed = min(disk.flushed, offset)
        self.machine.epochs().cut(offset)
        self.machine.cluster.counts["cuts"] += 1

    def _with_tables(self, _broker: Broker, candidates: Any) -> int:
        return int(candidates[0])


class Machine:
    """One replica: what survives its processes, and the process that runs now."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        chance = cluster.world.chance
        self.cluster, self.name = cluster, f"r{number}"
        rate = chance.choice([*RATES, chance.uniform(*RATES)])
        if cluster.alone:
            rate = RATES[number > 1]  # A master that believes in its lease for long, among impatient candidates.
        self.clock = MachineClock(cluster.world, chance.uniform(0, 1e5), rate)
        self.disk = Disk()
        self.process: Process | None = None
        self.keeper: SimulatedKeeper | None = None
        self.slow_until_s = self.no_bucket_until_s = 0.0
        self.next_answer = ""
        """What happens to the next answer to a put, and then: "lost", "slow", "last", or nothing."""

    def epochs(self) -> EpochFile:
        return EpochFile(cast(FileAccess, self.disk), EPOCHS)

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.is_alive

    @property
    def broker(self) -> SimulatedBroker | None:
        return None if self.keeper is None or not self.is_up else cast(SimulatedBroker | None, self.keeper.broker)

    def start(self) -> None:
        world = self.cluster.world
        self.process, self.keeper = world.make_process(self.clock), None
        world.spawn(self.process, self._main)

    def _main(self) -> None:
        config = BrokerConfig(
            broker_ip1=self.name, listen_port=10911, ha_listen_port=10912, ha_send_heartbeat_interval=500,
            ha_housekeeping_interval=2_000, ha_max_time_slave_not_catchup=2_000, ha_transfer_batch_size=FRAME_BYTES,
            in_sync_replicas=self.cluster.needed, bind_address="127.0.0.1",
        )  # fmt: skip
        election = BucketElection(
            SlowBucket(self), "c", "b", self.name, times=TIMES, clock=self.clock, access=cast(FileAccess, self.disk)
        )

        def open_broker(config: BrokerConfig, elected: Elected) -> Broker:
            world = self.cluster.world
            world.sleep(world.chance.choice([0.01, 0.05, 0.4]))
            return cast(Broker, SimulatedBroker(self, config, elected))

        keeper = SimulatedKeeper(
            election, config, StoreConfig(store_path_root_dir=self.name), open_broker, clock=self.clock
        )
        keeper.machine = self
        while True:
            try:
                keeper.start()
                break
            except TierError:
                self.cluster.world.sleep(0.5)  # A supervisor starts it again.
        self.keeper = keeper

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def lose_power(self) -> None:
        """Its peers learn nothing, and of what was not flushed some is lost."""
        if self.process is not None:
            self.process.on_end.clear()
            self.cluster.network.forget(self.name)
            self.process.kill()
            self.disk.lose_power(self.cluster.world.chance.choice([0, 0, self.cluster.world.chance.randrange(200)]))


@dataclass
class History:
    """What clients have seen: messages by offset, from the moment at which an answer arrived."""

    known: list[int | None] = field(default_factory=list)
    acknowledged: int = 0
    reads: int = 0
    _offsets: dict[int, int] = field(default_factory=dict)

    def note(self, offset: int, message: int) -> None:
        self.known += [None] * (offset + 1 - len(self.known))
        assert self.known[offset] in (None, message), (
            f"offset {offset} shows message {message}, and has shown {self.known[offset]}"
        )
        self.known[offset] = message
        where = self._offsets.setdefault(message, offset)
        assert where == offset, f"message {message} is at {offset}, and was at {where}"

    def acknowledge(self, offset: int, message: int) -> None:
        self.acknowledged += 1
        self.note(offset, message)

    def read(self, first: int, found: list[int], known_to: int) -> None:
        """A read from an offset on up to the end, which was asked for when all below `known_to` was known."""
        self.reads += 1
        end = first + len(found)
        assert end >= known_to, (
            f"a read ends at {end}, and {self.known[end]} at {end} was acknowledged or read before it"
        )
        for offset, message in enumerate(found, first):
            self.note(offset, message)


class Cluster:
    """Three machines, their network, their bucket and their clients."""

    def __init__(self, seed: int, count: int, alone: str) -> None:
        self.alone = alone
        self.world = World(seed)
        self.network = Network(self.world)
        self.bucket = MemoryDriver()
        self.history = History()
        self.counts: Counter[str] = Counter()
        chance = self.world.chance
        self.needed = chance.choice([1, 1, 2])
        self.machines = [Machine(self, number) for number in range(1, count + 1)]
        self._message = 0
        self._is_calm = False
        for each in self.machines:
            self.world.later(chance.uniform(0, 3.0), each.start)

    def run(self) -> None:
        """Raises AssertionError when the log is not linearizable, or replicas do not get equal again."""
        world = self.world
        for work in (self._send, self._read, self._answer, self._break_something):
            world.later(0.5, work)
        world.run(ACTIVE_S)
        self._is_calm = True
        self._heal()
        for _ in range(round(CALM_S)):
            world.run(world.now_s + 1.0)
            if not self._why_not_equal():
                break
        assert not self._why_not_equal(), f"{CALM_S:g} s after the last fault: {self._why_not_equal()}"
        final = next(each.broker for each in self.machines if each.broker is not None and each.broker.may_answer)
        seen = final.log.visible()
        self.history.read(0, seen, len(self.history.known))
        assert len(set(seen)) == len(seen), "a message is stored twice"

    # Clients.

    def _send(self) -> None:
        chance = self.world.chance
        if not self._is_calm:
            self.world.later(chance.uniform(0.02, 0.2), self._send)
        machine = self._chosen()
        for _ in range(chance.randrange(1, 4) if chance.random() < 0.95 else chance.randrange(10, BURST)):
            self._message += 1
            filler_bytes = chance.randrange(MESSAGE_BYTES_MAX) if chance.random() < 0.1 else 0
            self._ask(machine, partial(SimulatedBroker.put, message=self._message, filler_bytes=filler_bytes))

    def _chosen(self) -> Machine:
        """Mostly one that believes to be a master."""
        chance = self.world.chance
        masters = [each for each in self.machines if each.broker is not None and each.broker.is_master]
        return chance.choice(masters if masters and chance.random() < 0.8 else self.machines)

    def _ask(self, machine: Machine, request: Callable[[SimulatedBroker], object]) -> None:
        """A request arrives at the process that runs there; one that is paused serves it later."""
        if machine.process is not None and machine.is_up:

            def serve() -> None:
                broker = machine.broker
                if broker is not None:
                    request(broker)

            self.world.later(self.world.chance.uniform(0.001, 0.03), serve, machine.process)

    def _answer(self) -> None:
        self.world.later(0.03, self._answer)
        for each in self.machines:
            self._ask(each, self._acknowledge)

    def _acknowledge(self, broker: SimulatedBroker) -> None:
        for offset, message in broker.answer():
            self.world.later(
                self.world.chance.uniform(0.001, 0.05),
                lambda offset=offset, message=message: self.history.acknowledge(offset, message),  # type: ignore[misc]
            )

    def _read(self) -> None:
        chance = self.world.chance
        if not self._is_calm:
            self.world.later(chance.uniform(0.02, 0.1), self._read)
        machine, known_to = self._chosen(), len(self.history.known)
        first = max(0, known_to - 30) if chance.random() < 0.98 else 0

        def look(broker: SimulatedBroker) -> None:
            found = broker.log.visible(first)
            # The gate is asked when the answer leaves.
            self.world.later(chance.uniform(0, 0.02), lambda: leave(broker, found), machine.process)

        def leave(broker: SimulatedBroker, found: list[int]) -> None:
            if broker.may_answer:
                self.world.later(chance.uniform(0.001, 0.03), lambda: self.history.read(first, found, known_to))

        self._ask(machine, look)

    # Faults.

    def _break_something(self) -> None:
        if self._is_calm:
            return
        world, chance = self.world, self.world.chance
        if self.alone:
            world.later(chance.uniform(8.0, 12.0), self._break_something)
            self._chosen().next_answer = self.alone
            return
        world.later(chance.expovariate(1 / 2.5), self._break_something)
        if not self._is_replicated() and chance.random() < 0.8:
            return  # Most of all it is interesting what happens to a set of several replicas.
        victim = self._chosen()
        other = chance.choice([each for each in self.machines if each is not victim])
        until_s = world.now_s + chance.choice([chance.uniform(0.1, 2.0), chance.uniform(2.0, 12.0)])
        faults: dict[str, Callable[[], None]] = {
            "kill": lambda: self._end(victim, victim.kill),
            "power": lambda: self._end(victim, victim.lose_power),
            "power_of_all": self._black_out,
            "pause": lambda: self._pause(victim, until_s),
            "cut": lambda: self.network.cut(victim.name, other.name, until_s, both_ways=True),
            "cut_one_way": lambda: self.network.cut(victim.name, other.name, until_s, both_ways=False),
            "isolate": lambda: self._isolate(victim, until_s),
            "no_bucket": lambda: setattr(victim, "no_bucket_until_s", until_s),
            "slow_bucket": lambda: self._slow_down(until_s),
            "hand_over": lambda: self._hand_over(victim),
            "last_one": lambda: self._leave_one(other, victim),
            "reset": lambda: self.network.reset(victim.name),
            "alone": lambda: setattr(victim, "next_answer", chance.choice(["lost", "slow", "last"])),
            "slow_link": lambda: self.network.slow(victim.name, other.name, until_s),
        }
        name = chance.choice(
            [*faults, "pause", "pause", "kill", "cut", "isolate", "no_bucket", "last_one", "alone", "alone"]
        )
        self.counts[name] += 1
        faults[name]()

    def _is_replicated(self) -> bool:
        """Whether a master has others in its in-sync set."""
        masters = [each.broker.replication.master for each in self.machines if each.broker is not None]
        return any(each is not None and each.sync is not None and len(each.sync.recorded) > 1 for each in masters)

    def _end(self, machine: Machine, how: Callable[[], None]) -> None:
        if machine.is_up:
            how()
            self.world.later(self.world.chance.choice([0.2, 1.0, 4.0, 9.0]), lambda: self._start(machine))

    def _black_out(self) -> None:
        for each in self.machines:
            self._end(each, each.lose_power)

    def part_from_all(self, machine: Machine) -> None:
        """Only clients reach it, until after its term."""
        if not self._is_calm:
            until_s = self.world.now_s + self.world.chance.uniform(6.0, 10.0)
            machine.no_bucket_until_s = until_s
            self._isolate(machine, until_s)

    def _leave_one(self, machine: Machine, master: Machine) -> None:
        """One replica gets nothing more, and soon it is the only one: only what it has is left."""
        world, chance = self.world, self.world.chance
        fall_s = chance.choice([chance.uniform(0.05, 1.0), chance.uniform(1.0, 4.5)])
        self._isolate(machine, world.now_s + fall_s)
        if chance.random() < 0.5:
            master.no_bucket_until_s = world.now_s + 10.0

        def fall() -> None:
            for each in self.machines:
                if each is not machine and each.is_up and not self._is_calm:
                    each.lose_power()
                    world.later(chance.uniform(7.0, 15.0), lambda each=each: self._start(each))  # type: ignore[misc]

        world.later(fall_s, fall)

    def _slow_down(self, until_s: float) -> None:
        for each in self.machines:
            each.slow_until_s = until_s

    def _start(self, machine: Machine) -> None:
        if not machine.is_up:
            machine.start()

    def _pause(self, machine: Machine, until_s: float) -> None:
        if machine.process is not None:
            machine.process.paused_until_s = max(until_s, machine.process.paused_until_s)

    def _isolate(self, machine: Machine, until_s: float) -> None:
        for each in self.machines:
            if each is not machine:
                self.network.cut(machine.name, each.name, until_s, both_ways=True)

    def _hand_over(self, machine: Machine) -> None:
        keeper, process = machine.keeper, machine.process

        def demote() -> None:
            assert keeper is not None
            with suppress(RequestRefused):  # It is no master, or no other replica is in sync.
                keeper.demote(0, 3.0)

        if keeper is not None and process is not None and machine.is_up:
            self.world.spawn(process, demote)

    def _heal(self) -> None:
        self.network.heal()
        for each in self.machines:
            each.slow_until_s = each.no_bucket_until_s = 0.0
            each.next_answer = ""
            if each.process is not None:
                each.process.paused_until_s = 0.0
            self._start(each)

    def _why_not_equal(self) -> str:
        brokers = [each.broker for each in self.machines]
        masters = [each for each in brokers if each is not None and each.may_answer]
        if len(masters) != 1 or None in brokers:
            roles = [None if each is None else each.is_master for each in brokers]
            return f"masters: {roles}, {[each.keeper and each.keeper.problem for each in self.machines]}"
        master = masters[0].replication.master
        assert master is not None
        assert master.sync is not None
        logs = [bytes(each.disk.data) for each in self.machines]
        if len(master.sync.recorded) != len(self.machines) or len(set(logs)) != 1:
            problems = [each and each.replication.problem for each in brokers]
            return f"in sync: {sorted(master.sync.recorded)}, logs: {[len(each) for each in logs]}, {problems}"
        return "" if masters[0].log.dispatched_where == len(logs[0]) else "not all is shown"


def simulate(seed: int, count: int = 3, alone: str = "") -> Cluster:
    """One run. Raises AssertionError when the log is not linearizable.

    `alone`: instead of all faults, masters are left alone with their clients, after an answer of the bucket to a
    renewal that was "lost", "slow" or simply the "last" one; clocks run as unequally as they may.
    """
    cluster = Cluster(seed, count, alone)

    def connect(address: tuple[str, int], timeout_s: float, _source: object = None) -> Any:
        process = cluster.world.process
        assert process is not None
        machine = next(each for each in cluster.machines if each.process is process)
        return cluster.network.connect(machine.name, process, address, timeout_s)

    sockets = SimpleNamespace(**{**vars(socket), "create_connection": connect, "socket": Socket})
    gc.disable()
    try:
        with (
            mock.patch.object(ha_slave, "socket", sockets),
            product_threads(cluster.world, service, ha_master, ha_slave, elected_broker),
        ):
            cluster.run()
    finally:
        gc.enable()
    return cluster
