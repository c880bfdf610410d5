"""Our Python client against the real RocketMQ; and in one group with Java, with kills, on TierMQ and RocketMQ."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tiermq
from interop.rocketmq import SMALL_FILES, Cluster, Distribution, Unavailable, fetch_servers
from interop.test_offload_with_accounts import ACL_2, SECRETS
from present import present
from servers.loopback import stop
from servers.serving import Serving
from tiermq import Decision, Message, RetryLater, client
from tiermq.client import ReceivedMessage
from tiermq.errors import IllegalMessage, RemotingError, RequestRefused
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, int_field
from tiermq.remoting.tls import make_self_signed
from waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("python-client")]

VERSIONS = ["4.9.7", "5.3.3", "5.5.0"]
SETTINGS = {
    **SMALL_FILES,
    "enablePropertyFilter": True,
    "timerWheelEnable": True,
    "transactionCheckInterval": 1_000,
    "transactionTimeOut": 1_000,
    "messageDelayLevel": "1s 2s 3s 4s 5s 6s",
}
BODIES = [b"%03d" % number for number in range(60)]
_numbers = itertools.count()


@contextmanager
def real_cluster(version: str, scratch: Path) -> Iterator[Cluster]:
    distribution = servers(version)
    (scratch / "home" / "conf").mkdir(parents=True)
    for name in ("namesrv", "broker"):  # 4.9 does not start without.
        (scratch / "home" / "conf" / f"logback_{name}.xml").write_text("<configuration/>")
    with Cluster(distribution, scratch / "store", scratch / "home", SETTINGS) as running:
        running.await_registered()
        yield running


@pytest.fixture(scope="module", params=VERSIONS)
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Cluster]]:
    version = request.param
    with real_cluster(version, tmp_path_factory.mktemp(f"python-client-{version}")) as running:
        yield version, running


@pytest.fixture
def cluster(real: tuple[str, Cluster]) -> Iterator[client.Cluster]:
    with tiermq.connect(real[1].name_server) as made:
        yield made


@pytest.fixture
def topic(cluster: client.Cluster) -> str:
    name = f"P{next(_numbers)}"
    cluster.create_topic(name, 4)
    return name


def received(cluster: client.Cluster, group: str, count: int, **options: Any) -> list[ReceivedMessage]:
    with cluster.consumer(group, start="first", **options) as consumer:
        return [next(consumer) for _ in range(count)]


def test_what_is_sent_is_received_once_and_committed(cluster: client.Cluster, topic: str) -> None:
    with cluster.producer("shop") as producer:
        receipts = [producer.send(Message(topic, body, keys=["k"], tags="paid")) for body in BODIES[:20]]
        receipts += [each.result() for each in [producer.send_later(Message(topic, body)) for body in BODIES[20:40]]]
        receipts += producer.send_all([Message(topic, body) for body in BODIES[40:]])
    assert len({receipt.message_id for receipt in receipts}) == len(BODIES)
    found = received(cluster, f"G{topic}", len(BODIES), topic=topic)
    assert sorted(message.body for message in found) == BODIES
    assert {message.message_id for message in found} == {receipt.message_id for receipt in receipts}
    with cluster.consumer(f"G{topic}", topic=topic, idle_s=2) as consumer:
        assert list(consumer) == []


def test_large_bodies_tags_and_conditions(cluster: client.Cluster, topic: str) -> None:
    large = b"two coffees " * 1_000
    with cluster.producer("shop") as producer:
        for number in range(6):
            tag = "paid" if number % 2 else "open"
            producer.send(Message(topic, large + b"%d" % number, tags=tag, properties={"amount": str(number)}))
    by_tag = received(cluster, f"T{topic}", 3, topic=topic, tags="paid")
    assert sorted(message.body for message in by_tag) == [large + b"%d" % number for number in (1, 3, 5)]
    by_sql = received(cluster, f"S{topic}", 2, topic=topic, sql="amount > 3")
    assert sorted(message.body[-1:] for message in by_sql) == [b"4", b"5"]
    with pytest.raises(RequestRefused), cluster.consumer(f"B{topic}", topic=topic, sql="amount >"):
        pass


def test_order_by_sharding_key_and_ordered_handlers(cluster: client.Cluster, topic: str) -> None:
    seen: list[bytes] = []
    with cluster.producer("shop") as producer:
        later = [producer.send_later(Message(topic, body), sharding_key="one") for body in BODIES]
        assert len({each.result().queue_id for each in later}) == 1

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == BODIES[7] and seen.count(BODIES[7]) == 1:
            raise ValueError("not now")

    with cluster.consumer(f"O{topic}", topic=topic, start="first", on_message=handle, ordered=True):
        until(lambda: len(seen) == len(BODIES) + 1)
    assert seen == [*BODIES[:8], *BODIES[7:]]


def test_failures_come_again_and_become_dead_letters(cluster: client.Cluster, topic: str) -> None:
    group, attempts = f"R{topic}", defaultdict[bytes, list[int]](list)

    def handle(message: ReceivedMessage) -> None:
        attempts[message.body].append(message.attempt)
        assert message.topic == topic
        if message.body == b"bad" or message.attempt == 1:
            raise RetryLater(delay_level=1)

    with cluster.producer("shop") as producer:
        producer.send_all([Message(topic, b"bad"), Message(topic, b"good")])
    with cluster.consumer(group, topic=topic, start="first", on_message=handle, max_attempts=2):
        until(lambda: attempts[b"good"] == [1, 2] and len(attempts[b"bad"]) >= 2)
        dead = received(cluster, f"{group}-dead", 1, topic=f"%DLQ%{group}")
    assert [message.body for message in dead] == [b"bad"]


def test_transactions_end_with_their_block_or_by_the_check(cluster: client.Cluster, topic: str) -> None:
    asked: list[bytes] = []

    def check(message: ReceivedMessage) -> Decision:
        asked.append(message.body)  # RocketMQ may ask about what was just ended.
        return Decision.ROLLBACK if message.body == b"failed" else Decision.COMMIT

    with cluster.producer(f"TX{topic}", check=check) as producer:
        with producer.transaction(Message(topic, b"paid")):
            pass
        with pytest.raises(ZeroDivisionError), producer.transaction(Message(topic, b"failed")):
            raise ZeroDivisionError
        with producer.transaction(Message(topic, b"open")) as transaction:
            transaction.leave_open()
        until(lambda: b"open" in asked)
        found: set[bytes] = set()
        with cluster.consumer(f"X{topic}", topic=topic, start="first") as consumer:
            while not found >= {b"open", b"paid"}:
                found.add(next(consumer).body)
    assert b"failed" not in found


def test_delay_levels_and_timers(cluster: client.Cluster, topic: str, real: tuple[str, Cluster]) -> None:
    """A timer is the first that this session sends: before 5.0 it would be delivered at once, so it is refused."""
    expected = {b"after", b"at", b"level"}
    with cluster.producer("shop") as producer:
        at = datetime.now(UTC) + timedelta(seconds=4)
        if real[0].startswith("4."):
            expected = {b"level"}
            with pytest.raises(IllegalMessage, match="use delay_level"):
                producer.send(Message(topic, b"after"), delay_s=4)
            with pytest.raises(IllegalMessage, match="use delay_level"):
                producer.send(Message(topic, b"at"), deliver_at=at)
        else:
            producer.send(Message(topic, b"after"), delay_s=4)
            producer.send(Message(topic, b"at"), deliver_at=at)
        producer.send(Message(topic, b"level"), delay_level=2)
    found = received(cluster, f"D{topic}", len(expected), topic=topic)
    assert {message.body for message in found} == expected
    for message in found:  # RocketMQ's timers count whole seconds.
        late = message.stored_at - message.born_at
        assert late >= timedelta(seconds=1.9 if message.body == b"level" else 2.9), (message.body, late)


def test_every_broadcasting_consumer_gets_every_message(
    cluster: client.Cluster, topic: str, real: tuple[str, Cluster], tmp_path: Path
) -> None:
    with cluster.producer("shop") as producer:
        producer.send_all([Message(topic, body) for body in BODIES])
    options: dict[str, Any] = {"topic": topic, "broadcast": True, "offsets_file": tmp_path / "offsets.json"}
    with tiermq.connect(real[1].name_server) as other:
        for each in (cluster, other):
            found = received(each, f"B{topic}", len(BODIES), **{**options, "offsets_file": None})
            assert sorted(message.body for message in found) == BODIES
    assert len(received(cluster, f"B{topic}", len(BODIES), **options)) == len(BODIES)
    with cluster.producer("shop") as producer:
        producer.send(Message(topic, b"new"))
    assert [message.body for message in received(cluster, f"B{topic}", 1, **options)] == [b"new"]


def test_an_operator_s_reset_at_the_broker_moves_a_member_that_runs(
    cluster: client.Cluster, topic: str, real: tuple[str, Cluster]
) -> None:
    """What `mqadmin resetOffsetByTime` asks. 4.9 passes it on to the member, 5.x may answer its next pull instead."""
    group, lock = f"V{topic}", threading.Lock()
    seen = Counter[bytes]()

    def handle(message: ReceivedMessage) -> None:
        with lock:
            seen[message.body] += 1

    host, _, port = real[1].broker_address.rpartition(":")
    with (
        cluster.producer("shop") as producer,
        cluster.consumer(group, topic=topic, start="first", on_message=handle) as consumer,
        BlockingClient(host, int(port), timeout_s=60) as operator,
    ):
        for body in BODIES[:20]:
            producer.send(Message(topic, body))
        until(lambda: len(seen) == 20 and consumer.metrics["open"] == 0)
        consumer.commit()
        ext = {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"}
        answer = operator.request(RemotingCommand(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext=ext))
        assert answer.code == 0, answer.remark
        for queue_id in range(4):  # Ends the pulls that the broker holds.
            producer.send(Message(topic, b"new"), queue=queue_id)
        until(lambda: all(seen[body] >= 2 for body in BODIES[:20]))


def test_a_request_is_answered(cluster: client.Cluster, topic: str, real: tuple[str, Cluster]) -> None:
    with tiermq.connect(real[1].name_server) as other:

        def handle(message: ReceivedMessage) -> None:
            consumer.reply(message, b"for " + message.body)

        with (
            other.consumer(f"Q{topic}", topic=topic, start="first", on_message=handle) as consumer,
            cluster.producer("asker") as producer,
        ):
            assert producer.request(Message(topic, b"a tea"), timeout_s=60).body == b"for a tea"


def test_popped_messages_are_acknowledged_or_come_again(
    cluster: client.Cluster, topic: str, real: tuple[str, Cluster]
) -> None:
    if real[0].startswith("4."):
        pytest.skip("POP came with RocketMQ 5.0")
    with cluster.producer("shop") as producer:
        producer.send_all([Message(topic, b"first"), Message(topic, b"second")])
    with cluster.simple_consumer(f"POP{topic}", topic=topic, invisible_s=12, start="first") as consumer:
        found: list[ReceivedMessage] = []
        while len(found) < 2:
            found += consumer.receive()
        consumer.ack(found[0])
        again: list[ReceivedMessage] = []
        while not again:
            again = consumer.receive()
        assert [(message.body, message.attempt) for message in again] == [(found[1].body, 2)]
        consumer.ack(again[0])


# Brokers that let in known accounts only, or speak TLS only.


def servers(version: str) -> Distribution:
    try:
        return fetch_servers(version)
    except Unavailable as reason:
        pytest.skip(f"no real RocketMQ {version} here: {reason}")


def goes_through(cluster: client.Cluster, topic: str) -> None:
    """Each kind of send, and a consumer that commits and leaves."""
    cluster.create_topic(topic, 4)
    with cluster.producer("shop") as producer:
        producer.send(Message(topic, b"1"))
        later = [producer.send_later(Message(topic, b"%d" % number)) for number in range(2, 12)]
        producer.send_all([Message(topic, b"12"), Message(topic, b"13")])
        assert len({each.result().message_id for each in later}) == 10
    expected = sorted(b"%d" % number for number in range(1, 14))
    assert sorted(message.body for message in received(cluster, f"G{topic}", 13, topic=topic)) == expected
    with cluster.consumer(f"G{topic}", topic=topic, idle_s=2) as consumer:
        assert list(consumer) == []


def test_a_signed_client_is_let_in_and_others_are_refused(tmp_path: Path) -> None:
    settings = {**SETTINGS, **ACL_2, "authConfigPath": tmp_path / "auth"}
    with Cluster(servers("5.3.3"), tmp_path / "store", tmp_path / "home", settings) as running:
        running.await_registered()
        secret = SECRETS["operator"]
        with tiermq.connect(running.name_server, access_key="operator", secret_key=secret) as cluster:
            goes_through(cluster, "Signed")
        for key, its_secret in ((None, None), ("operator", "another-secret")):
            refuses(running.name_server, "Signed", access_key=key, secret_key=its_secret)


def refuses(name_server: str, topic: str, **how: Any) -> None:
    with (
        tiermq.connect(name_server, **how) as cluster,
        cluster.producer("shop", patience_s=1) as producer,
        pytest.raises(RemotingError),
    ):
        producer.send(Message(topic, b"x"))


def test_a_client_by_tls_is_let_in_and_another_certificate_is_refused(tmp_path: Path) -> None:
    paths = {}
    for name in ("server", "other"):
        made = make_self_signed(name)
        paths[name] = tmp_path / f"{name}.crt"
        paths[name].write_text(made.certificate)
        (tmp_path / f"{name}.key").write_text(made.key)
    options = {
        "tls.server.mode": "enforcing",
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.server.certPath": paths["server"],
        "tls.server.keyPath": tmp_path / "server.key",
        "tls.client.trustCertPath": paths["server"],
        "tls.client.authServer": "false",
    }
    distribution = replace(servers("5.3.3"), options=tuple(f"-D{name}={value}" for name, value in options.items()))
    with Cluster(distribution, tmp_path / "store", tmp_path / "home", SETTINGS) as running:
        trusting = client.ClientTls(trusted_path=str(paths["server"]))
        running.await_registered(trusting.context())
        with tiermq.connect(running.name_server, tls=trusting) as cluster:
            goes_through(cluster, "Secret")
        for wrong in (False, client.ClientTls(trusted_path=str(paths["other"]))):
            refuses(running.name_server, "Secret", tls=wrong)


# In one group with Java, with kills on both sides.


class Process:
    """One member, in Java or Python, and what it has received."""

    def __init__(self, name: str, command: list[str], scratch: Path) -> None:
        self.name = name
        self.received: list[tuple[int, int, str]] = []
        """Queue, offset and body of each message, in the order in which it reported them."""
        self.is_started = False
        with (scratch / f"{name}.errors").open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=scratch
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self._take(lines)

    def _take(self, lines: Iterable[str]) -> None:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                return  # The last line of a process that was killed.
            self.is_started = self.is_started or "started" in event
            if "received" in event:
                got = event["received"]
                self.received.append((got["queue"], got["offset"], got["body"]))

    def await_more(self, count: int = 20) -> None:
        before = len(self.received)
        until(lambda: len(self.received) >= before + count or self.process.poll() is not None)
        assert self.process.poll() is None, f"{self.name} ended"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.close()

    def close(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        stop(self.process)
        self._reader.join()


class Handover:
    """A member goes. What the group had committed then must not come again, from whichever member it was."""

    def __init__(self, cluster: client.Cluster, topic: str, group: str, members: list[Process]) -> None:
        session = cluster._inner.session

        async def committed() -> dict[int, int]:
            route = present(await session.route(topic))
            found = {}
            for place in route.readable:
                answer = await session.ask(
                    place.address,
                    RequestCode.QUERY_CONSUMER_OFFSET,
                    expected=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
                    consumerGroup=group,
                    topic=topic,
                    queueId=place.queue_id,
                    setZeroIfNotFound=False,
                )
                found[place.queue_id] = int_field(answer, "offset", 0)
            return found

        self.committed = cluster._run(committed())
        self._before = {each.name: len(each.received) for each in members}

    def again(self, members: list[Process]) -> list[tuple[str, int, int]]:
        """Messages below that which came a second time after it: who got it, queue and offset."""
        firsts = {
            (queue, offset) for each in members for queue, offset, _ in each.received[: self._before.get(each.name, 0)]
        }
        return [
            (each.name, queue, offset)
            for each in members
            for queue, offset, _ in each.received[self._before.get(each.name, 0) :]
            if offset < self.committed[queue] and (queue, offset) in firsts
        ]


@pytest.fixture(params=["TierMQ", *VERSIONS])
def name_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "TierMQ":
        with Serving(tmp_path / "store") as served:
            yield served.name_server
    else:
        with real_cluster(request.param, tmp_path) as running:
            yield running.name_server


def test_a_group_of_java_and_python_loses_nothing_when_members_are_killed(
    name_server: str, distribution: Distribution, tmp_path: Path
) -> None:
    topic, group = "Shared", "G"

    def java(number: int) -> Process:
        job = {"nameServer": name_server, "topic": topic, "group": group, "receive": 1_000_000}
        home = tmp_path / f"java-{number}"
        home.mkdir()
        return Process(f"java-{number}", distribution.java(home, "ClientJob", json.dumps(job), heap="128m"), tmp_path)

    def python(number: int) -> Process:
        command = [sys.executable, "-m", "interop.python_member", name_server, topic, group]
        return Process(f"python-{number}", command, tmp_path)

    stored: list[str] = []
    ends = threading.Event()
    with ExitStack() as open_ones, tiermq.connect(name_server) as cluster:
        cluster.create_topic(topic, 8)
        members = [java(1), python(1)]

        def close_all() -> None:
            for each in members:
                each.close()

        open_ones.callback(close_all)
        until(lambda: all(each.is_started for each in members))
        producer = open_ones.enter_context(cluster.producer("steady"))

        def produce() -> None:
            while not ends.is_set():
                body = f"m{len(stored)}"
                producer.send(Message(topic, body.encode()))
                stored.append(body)
                ends.wait(0.003)

        sending = threading.Thread(target=produce)
        sending.start()
        try:
            for each in members:
                each.await_more()
            handovers = [Handover(cluster, topic, group, members)]
            members[1].kill()  # Python dies; Java gets its queues, then a new Python some of them.
            members.append(python(2))
            members[2].await_more()
            members[0].await_more()
            handovers.append(Handover(cluster, topic, group, members))
            members[0].kill()  # Java dies, and a new one comes.
            members[2].await_more()
            members.append(java(2))
            members[3].await_more()
            members[2].close()  # Python leaves as it should: all that it handled is committed.
            handovers.append(Handover(cluster, topic, group, members))
            members[3].await_more()
        finally:
            ends.set()
            sending.join()
        until(lambda: {body for each in members for _, _, body in each.received} >= set(stored))
    owners = defaultdict[str, list[str]](list)
    for each in members:
        for _, _, body in each.received:
            owners[body].append(each.name)
    assert set(owners) == set(stored)
    # None twice without a reason. No member gets one twice itself, since none of them failed,
    twice = {body: names for body, names in owners.items() if len(names) > 1}
    assert {body: names for body, names in twice.items() if len(set(names)) < len(names)} == {}
    # and what was committed when a member went comes to no other: only what it had not committed does.
    assert [handover.again(members) for handover in handovers] == [[], [], []]
    assert all(max(handover.committed.values()) > 0 for handover in handovers), "or this compares nothing"
