"""Clients and a broker: whatever the network between them does, what was acknowledged is there, and nothing stays.

Producers and consumers go through a proxy, some of them by TLS. A bystander has a network of its own, and must not
notice anything. At the end half-open connections are left behind on purpose: they must go with their time, and with
them every held pull, thread and descriptor.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.brokers import broker_config, send_command
from broker.consuming import on_loop, part, until
from campaign.networks import traffic
from campaign.networks.faults import Step, apply
from campaign.networks.proxy import CLEAR, Proxy, Weather
from campaign.networks.scheduled_part import ScheduledPart, count_links, ending_its_threads
from campaign.networks.traffic import QUEUES, TOPIC, Ledger, Traveller
from campaign.part import Outcome
from tiermq.broker.broker import Broker
from tiermq.broker.pull.pull_processor import PullProcessor
from tiermq.clock import Clock
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.tls import TlsSettings, trusting_client_context

NOTHING_YET = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
"""The second where the message before is not dispatched yet."""
PROGRESS = 2
IDLE_S = 121.0
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 4 * 1024 * 1024,
    "mapped_file_size_consume_queue": 20 * 1000,
    "max_hash_slot_num": 64,
    "max_index_num": 4000,
}


@dataclass(frozen=True, kw_only=True)
class ClientsPart(ScheduledPart):
    """See the module."""

    steps: int = 8
    producers: int = 3
    rounds: int = 60
    name: str = "network-clients"
    title: str = "partitions, slow and half-open links and cut frames between clients and a broker"
    promise = "acknowledged messages are there, others are served, and nothing is left behind"

    def live(self, seed: int, scratch: Path, steps: list[Step], outcome: Outcome) -> list[str]:
        wrong: list[str] = []
        with ending_its_threads(wrong):
            broker = Broker.open(scratch / "store", config=broker_config(), tls=TlsSettings(), **SIZES)
            broker.parts.topics.put(TopicConfig(TOPIC, QUEUES, QUEUES))
            with broker, Proxy("127.0.0.1", broker.port) as proxy:
                wrong += _World(seed, broker, proxy, self.producers).live(steps, outcome)
        outcome.counts["faults_injected"] += 1  # The half-open connections at the end.
        return wrong


class _World:
    """One broker, the network in front of it, and who uses it."""

    def __init__(self, seed: int, broker: Broker, proxy: Proxy, producers: int) -> None:
        self._broker = broker
        self._proxy = proxy
        self._ledger = Ledger()
        self._ends: dict[int, int] = {}
        tls = trusting_client_context()
        self._producers = [
            Traveller(f"producer-{number}", proxy.port, self._ledger, tls if number % 3 == 2 else None)
            for number in range(producers)
        ]
        self._consumers = [
            Traveller(f"consumer-{queue}", proxy.port, self._ledger, tls if queue == 1 else None)
            for queue in range(QUEUES)
        ]
        self._chances = [random.Random(f"{seed}/{number}") for number in range(producers)]

    def live(self, steps: list[Step], outcome: Outcome) -> list[str]:
        """What is wrong in the end."""
        ledger, travellers = self._ledger, [each.name for each in (*self._producers, *self._consumers)]
        connections_at_start = self._connections()
        sending = [
            traffic.started(self._producing(number), each.name, ledger) for number, each in enumerate(self._producers)
        ]
        reading = [
            traffic.started(self._consuming(queue), each.name, ledger) for queue, each in enumerate(self._consumers)
        ]
        bystander = traffic.started(self._stand_by, "bystander", ledger)
        try:
            for step in steps:
                apply(step, self._proxy)
                ledger.wait_progress([*travellers, "bystander"], PROGRESS)
            self._proxy.set(CLEAR)
            acknowledged = len(ledger.acknowledged)
            ledger.wait_for(lambda: len(ledger.acknowledged) >= acknowledged + len(self._producers))
        except BaseException as error:
            ledger.fail(f"the round itself: {error!r}")  # Lets everybody go who waits.
            raise
        finally:
            ledger.ending.set()
        for thread in (*sending, bystander):
            thread.join()
        for queue in range(QUEUES):
            self._ends[queue] = self._broker.parts.local.max_offset(TOPIC, queue)
        for thread in reading:
            thread.join()
        wrong = traffic.judge(ledger, self._stored(), self._ends) + self._leave_half_open(connections_at_start)
        self._count(outcome)
        return wrong

    def _producing(self, number: int) -> Callable[[], None]:
        return lambda: traffic.produce(self._producers[number], number % QUEUES, self._ledger, self._chances[number])

    def _consuming(self, queue: int) -> Callable[[], None]:
        return lambda: traffic.consume(self._consumers[queue], queue, self._ledger, self._end_of)

    def _end_of(self, queue: int) -> int | None:
        with self._ledger.lock:
            return 0 if self._ledger.problems else self._ends.get(queue)

    def _stand_by(self) -> None:
        """Has a network of its own: every request is answered, whatever befalls the others."""
        with BlockingClient("127.0.0.1", self._broker.port, timeout_s=60.0) as client:
            while not self._ledger.ending.is_set() and not self._ledger.problems:
                sent = client.request(send_command("Bystander", b"by"))
                # Waits for a message that does not come, so that it does not take the processor from the others.
                end = int(sent.ext.get("queueOffset", "0")) + 1
                fields = {**traffic.pull_command(0, end).ext, "topic": "Bystander", "suspendTimeoutMillis": "1"}
                pulled = client.request(RemotingCommand(RequestCode.PULL_MESSAGE, ext=fields))
                if sent.code != ResponseCode.SUCCESS or pulled.code not in NOTHING_YET:
                    raise AssertionError(f"expected others to be served, found {sent} and {pulled}")
                self._ledger.note("bystander")

    def _stored(self) -> dict[traffic.Place, bytes]:
        found: dict[traffic.Place, bytes] = {}
        local = self._broker.parts.local
        local.dispatch_now()
        for queue in range(QUEUES):
            offset = 0
            while offset < local.max_offset(TOPIC, queue):
                for message in local.get(TOPIC, queue, offset).messages:
                    found[queue, message.queue_offset] = message.body
                    offset = message.queue_offset + 1
        return found

    # What is left behind.

    def _connections(self) -> int:
        return int(on_loop(self._broker, lambda: len(self._broker.parts.server.connections)))

    def _leave_half_open(self, connections_at_start: int) -> list[str]:
        """Peers whose end never reaches the broker: they hold pulls, and vanish."""
        server, pulls = self._broker.parts.server, part(self._broker, PullProcessor).long_polling
        until(self._broker, lambda: len(server.connections) == connections_at_start)
        ghosts = [BlockingClient("127.0.0.1", self._proxy.port, timeout_s=60.0) for _ in range(3)]
        for ghost in ghosts:
            fields = {**traffic.pull_command(0, self._ends[0]).ext, "suspendTimeoutMillis": "100000"}
            ghost.oneway(RemotingCommand(RequestCode.PULL_MESSAGE, ext=fields))
            ghost.request(RemotingCommand(RequestCode.GET_MAX_OFFSET, ext={"topic": TOPIC, "queueId": "0"}))
        self._proxy.set(Weather(hold_up=True, hold_down=True))
        for ghost in ghosts:
            ghost.close()
        wrong = []
        if self._connections() != connections_at_start + len(ghosts):
            wrong.append("half-open connections were closed before their time")
        server.clock = _Later(server.clock)
        on_loop(self._broker, server.close_idle)
        until(self._broker, lambda: len(server.connections) == connections_at_start)
        if pulls.held or server.waiting_blocking or server.handler_errors:
            wrong.append(
                f"left behind: {pulls.held} held pulls, {server.waiting_blocking} waiting requests, "
                f"{server.handler_errors} mistakes of handlers"
            )
        return wrong

    def _count(self, outcome: Outcome) -> None:
        ledger = self._ledger
        outcome.counts["messages_checked"] += len(ledger.acknowledged)
        outcome.counts["messages_sent_again"] += sum(ledger.attempts.values()) - len(ledger.attempts)
        outcome.counts["errors_met"] += sum(ledger.errors.values())
        outcome.counts["bystander_requests"] += ledger.happened["bystander"]
        count_links(self._proxy, outcome)
        with open("/proc/self/statm", encoding="ascii") as statm:
            outcome.peaks["memory_mb"] = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
        outcome.peaks["open_files"] = float(len(os.listdir("/proc/self/fd")))


class _Later:
    """A clock that is two minutes ahead of another."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        return self._clock.now_ms() + int(IDLE_S * 1000)

    def monotonic(self) -> float:
        return self._clock.monotonic() + IDLE_S
