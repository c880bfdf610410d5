"""RocketMQ 5's clients, installed from their registries and unchanged, speak gRPC with `tiermq serve --grpc-port`.

A process for each job. Crashes and dead letters take long, and are in the lane of long tests; Java, Go and Rust are in
that of foreign programs.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from clients.conftest import available
from clients.environments import (
    CLIENTS,
    GRPC_CLIENTS,
    GRPC_GO,
    GRPC_JAVA,
    GRPC_JAVA_LITE,
    GRPC_RUST,
    ForeignClient,
)
from clients.test_third_party_clients import stored
from servers.certificate import loopback_certificate
from servers.loopback import free_ports
from servers.serving import Serving
from tiermq.broker.grpc.grpc_leases import RENEWED_MS
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import encode_body

pytestmark = pytest.mark.xdist_group("grpc-clients")

DELAY_S = 5
"""Long enough to take a message back before its time."""
UNAUTHORIZED = 'tiermq_grpc_calls_total{call="QueryRoute",code="40100"}'
BODIES = [f"order {number}, with a word in another script: Ωμέγα" for number in range(5)]
LONG_BODY = "A long order, which clients of remoting compress: Ωμέγα. " * 1_000
SETTINGS: dict[str, Any] = {
    "recall_message_enable": True,
    "transaction_time_out": 1_000,
    "transaction_check_interval": 500,
    "message_delay_level": "1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s",
}
_numbers = itertools.count()


class GrpcServing(Serving):
    """A broker that speaks gRPC, too."""

    def __init__(self, store: Path, *words: str, **settings: object) -> None:
        [self.grpc_port] = free_ports(1)
        super().__init__(store, "--grpc-port", str(self.grpc_port), *words, **settings)

    @property
    def endpoints(self) -> str:
        return str(self.ready["grpc"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcServing]:
    with GrpcServing(tmp_path_factory.mktemp("grpc") / "store", **SETTINGS) as served:
        yield served


PYTHON, NODE = GRPC_CLIENTS
OTHERS = (GRPC_JAVA, GRPC_GO, GRPC_RUST)
ALL = [*GRPC_CLIENTS, *(pytest.param(each, marks=pytest.mark.interop) for each in OTHERS)]
PUSHING = [
    PYTHON,
    pytest.param(NODE, marks=pytest.mark.slow),  # Its shutdown waits for its long polls.
    *(pytest.param(each, marks=pytest.mark.interop) for each in OTHERS if "push" not in each.lacks),
]


@pytest.fixture(params=ALL, ids=lambda each: each.name)
def client(request: pytest.FixtureRequest) -> ForeignClient:
    return available(request.param)


@pytest.fixture(params=PUSHING, ids=lambda each: each.name)
def push_client(request: pytest.FixtureRequest) -> ForeignClient:
    return available(request.param)


@pytest.fixture
def place(broker: GrpcServing) -> dict[str, str]:
    """A topic that no other test uses, made by its first send."""
    number = next(_numbers)
    return {"endpoints": broker.endpoints, "topic": f"grpc-{number}", "group": f"group-{number}"}


def bodies(events: list[dict[str, Any]]) -> list[str]:
    return [event["received"]["body"] for event in events if "received" in event]


def attempts(events: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(event["received"]["body"], event["received"]["attempt"]) for event in events if "received" in event]


def make_group(broker: Serving, group: str, *, in_order: bool, **fields: int) -> None:
    body = json.dumps({"groupName": group, "consumeMessageOrderly": in_order, **fields}).encode()
    host, _, port = broker.address.rpartition(":")
    with BlockingClient(host, int(port), timeout_s=60) as admin:
        made = RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        assert admin.request(made).code == 0


def make_topic(broker: Serving, topic: str, attributes: str) -> None:
    fields = {"defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "order": "false"}
    fields |= {"topic": topic, "topicFilterType": "SINGLE_TAG", "attributes": attributes}
    host, _, port = broker.address.rpartition(":")
    with BlockingClient(host, int(port), timeout_s=60) as admin:
        assert admin.request(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=fields)).code == 0


def metrics_of(broker: GrpcServing) -> str:
    with urlopen(f"http://{broker.ready['metrics']}/metrics") as page:
        return str(page.read().decode())


def make_lite_group(broker: Serving, group: str, topic: str) -> None:
    host, _, port = broker.address.rpartition(":")
    body = encode_body({"groupName": group, "attributes": {"+lite.bind.topic": topic}})
    with BlockingClient(host, int(port), timeout_s=60) as admin:
        assert admin.request(RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0


def test_a_simple_consumer_receives_what_was_sent_and_the_store_has_it(
    client: ForeignClient, broker: GrpcServing, place: dict[str, str], tmp_path: Path
) -> None:
    sent = client.run(tmp_path, **place, bodies=BODIES)
    got = client.run(tmp_path, **place, receive=len(BODIES))
    assert sorted(bodies(got)) == BODIES
    kept = stored(broker, place["topic"])
    assert sorted(message.body.decode() for message in kept) == BODIES
    ids = sorted(event["sent"]["id"] for event in sent)
    assert ids == sorted(str(message.unique_key) for message in kept)
    assert ids == sorted(event["received"]["id"] for event in got)


def test_a_message_group_stays_in_order_for_a_simple_consumer(
    client: ForeignClient, broker: GrpcServing, place: dict[str, str], tmp_path: Path
) -> None:
    make_group(broker, place["group"], in_order=True)
    client.run(tmp_path, **place, bodies=BODIES, messageGroup="customer-7")
    assert bodies(client.run(tmp_path, **place, receive=len(BODIES))) == BODIES
    assert {message.get_property("__SHARDINGKEY") for message in stored(broker, place["topic"])} == {"customer-7"}


def test_a_long_body_is_received_as_it_was_sent(
    client: ForeignClient, broker: GrpcServing, place: dict[str, str], tmp_path: Path
) -> None:
    client.run(tmp_path, **place, bodies=[LONG_BODY])
    assert bodies(client.run(tmp_path, **place, receive=1)) == [LONG_BODY]
    [kept] = stored(broker, place["topic"])
    assert kept.decompressed_body().decode() == LONG_BODY


@pytest.mark.parametrize("other", CLIENTS, ids=lambda each: each.name)
def test_remoting_clients_read_what_grpc_clients_send_and_the_reverse(
    other: ForeignClient, broker: GrpcServing, place: dict[str, str], tmp_path: Path
) -> None:
    ours, other = available(PYTHON), available(other)
    wanted = sorted([*BODIES, LONG_BODY])
    here = {"nameServer": broker.name_server, "topic": place["topic"]}
    ours.run(tmp_path, **place, bodies=wanted)  # It makes the topic, too.
    assert sorted(bodies(other.run(tmp_path, **here, group="remoting", receive=len(wanted)))) == wanted
    assert sorted(bodies(ours.run(tmp_path, **place, receive=len(wanted)))) == wanted
    other.run(tmp_path, **here, group="producers", bodies=wanted)
    assert sorted(bodies(ours.run(tmp_path, **place, receive=len(wanted)))) == wanted


def test_a_message_group_stays_in_order_for_a_push_consumer(
    push_client: ForeignClient, broker: GrpcServing, place: dict[str, str], tmp_path: Path
) -> None:
    make_group(broker, place["group"], in_order=True)
    push_client.run(tmp_path, **place, bodies=BODIES, messageGroup="customer-7")
    assert bodies(push_client.run(tmp_path, **place, receive=len(BODIES), push=True)) == BODIES


def test_a_push_consumer_gets_again_what_it_failed_to_consume(
    push_client: ForeignClient, place: dict[str, str], tmp_path: Path
) -> None:
    push_client.run(tmp_path, **place, bodies=BODIES[:3])
    got = attempts(push_client.run(tmp_path, **place, receive=3, push=True, again=[BODIES[1]]))
    assert sorted(got) == sorted([*((body, 1) for body in BODIES[:3]), (BODIES[1], 2)])


def test_delayed_messages_come_after_their_time_and_recalled_ones_never(
    client: ForeignClient, broker: GrpcServing, place: dict[str, str], tmp_path: Path
) -> None:
    if "recall" not in client.lacks:
        [sent, recalled] = client.run(tmp_path, **place, bodies=["taken back"], delayS=DELAY_S, recall=True)
        assert recalled["recalled"] == sent["sent"]["id"]
    client.run(tmp_path, **place, bodies=["later"], delayS=DELAY_S)
    assert bodies(client.run(tmp_path, **place, receive=1)) == ["later"]
    [kept] = stored(broker, place["topic"])
    assert kept.store_timestamp_ms - kept.born_timestamp_ms >= (DELAY_S - 1) * 1_000


def test_transactions_are_committed_rolled_back_and_asked_about(
    client: ForeignClient, broker: GrpcServing, place: dict[str, str], tmp_path: Path
) -> None:
    client.run(tmp_path, **place, bodies=["rolled back"], transaction="rollback")
    client.run(tmp_path, **place, bodies=["committed"], transaction="commit")
    events = client.run(tmp_path, **place, bodies=["lost"], transaction="lost")
    assert {"checked": "lost"} in events
    assert sorted(bodies(client.run(tmp_path, **place, receive=2))) == ["committed", "lost"]
    assert len(stored(broker, place["topic"])) == 2


def test_tags_and_sql_choose_messages(client: ForeignClient, place: dict[str, str], tmp_path: Path) -> None:
    client.run(tmp_path, **place, bodies=["cheap"], tag="one", properties={"price": "5"})
    client.run(tmp_path, **place, bodies=["dear"], tag="two", properties={"price": "10"})
    assert bodies(client.run(tmp_path, **{**place, "group": "by-tag"}, receive=1, only="two")) == ["dear"]
    assert bodies(client.run(tmp_path, **{**place, "group": "by-sql"}, receive=1, sql="price < 7")) == ["cheap"]


def test_a_push_consumer_gets_what_its_sql_chooses(
    push_client: ForeignClient, place: dict[str, str], tmp_path: Path
) -> None:
    push_client.run(tmp_path, **place, bodies=["dear"], properties={"price": "10"})
    push_client.run(tmp_path, **place, bodies=["cheap"], properties={"price": "5"})
    assert bodies(push_client.run(tmp_path, **place, receive=1, push=True, sql="price < 7")) == ["cheap"]


def test_a_message_of_a_higher_priority_is_received_first(
    broker: GrpcServing, place: dict[str, str], tmp_path: Path
) -> None:
    client = available(PYTHON)
    make_topic(broker, place["topic"], "+message.type=PRIORITY")
    for priority in (1, 3, 2):
        client.run(tmp_path, **place, bodies=[str(priority)], priority=priority)
    assert bodies(client.run(tmp_path, **place, receive=3)) == ["3", "2", "1"]


@contextmanager
def consuming(client: ForeignClient, scratch: Path, **job: Any) -> Iterator[Iterator[tuple[str, int]]]:
    """A push consumer that does not end: body and attempt of what it gets, as it gets it. It is killed."""
    running = client.start(scratch, **job, receive=1_000, push=True)
    assert running.stdout is not None
    assert running.stderr is not None
    with running.stdout as lines, running.stderr:
        try:
            yield (attempts([json.loads(line)])[0] for line in lines if line.startswith('{"received"'))
        finally:
            running.kill()
            running.wait()


@pytest.mark.slow
def test_what_a_consumer_that_crashed_had_goes_to_the_next_one(push_client: ForeignClient, tmp_path: Path) -> None:
    with GrpcServing(tmp_path / "store", **SETTINGS, channel_expired_timeout=15_000) as broker:
        place = {"endpoints": broker.endpoints, "topic": "T", "group": "G"}
        push_client.run(tmp_path, **place, bodies=["one"])
        with consuming(push_client, tmp_path, **place, hold=["one"]) as got:
            assert next(got) == ("one", 1)
        assert attempts(push_client.run(tmp_path, **place, receive=1, push=True)) == [("one", 2)]
        [first], [again] = stored(broker, "T"), stored(broker, "%RETRY%G_T", queues=1)
        assert again.store_timestamp_ms - first.store_timestamp_ms < RENEWED_MS  # Not by the end of its time.


@pytest.mark.slow
def test_what_fails_too_often_is_received_as_a_dead_letter(
    push_client: ForeignClient, broker: GrpcServing, place: dict[str, str], tmp_path: Path
) -> None:
    make_group(broker, place["group"], in_order=False, retryMaxTimes=1)
    push_client.run(tmp_path, **place, bodies=["bad"])
    dead = {**place, "topic": f"%DLQ%{place['group']}", "group": "undertaker"}
    with consuming(push_client, tmp_path, **place, fail=["bad"]) as got:
        assert [next(got), next(got)] == [("bad", 1), ("bad", 2)]
        assert bodies(push_client.run(tmp_path, **dead, receive=1)) == ["bad"]


@pytest.mark.slow
def test_what_one_client_sends_the_other_receives(place: dict[str, str], tmp_path: Path) -> None:
    clients = [available(each) for each in GRPC_CLIENTS]
    for sender, receiver in itertools.permutations(clients, 2):
        here = {**place, "topic": f"{place['topic']}-{sender.name}"}
        sender.run(tmp_path, **here, bodies=BODIES)
        assert sorted(bodies(receiver.run(tmp_path, **here, receive=len(BODIES)))) == BODIES


@pytest.mark.parametrize(
    ("lite_client", "push"),
    [(PYTHON, False), (PYTHON, True), pytest.param(GRPC_JAVA_LITE, True, marks=pytest.mark.interop)],
    ids=["python-simple", "python-push", "java-push"],
)
def test_lite_topics_are_sent_to_and_consumed_by_rocketmq_s_client(
    lite_client: ForeignClient, push: bool, tmp_path: Path
) -> None:
    client = available(lite_client)
    with GrpcServing(tmp_path / "store", **SETTINGS, enable_lmq=True, enable_multi_dispatch=True) as broker:
        make_topic(broker, "Sessions", "+message.type=LITE")
        make_lite_group(broker, "agents", "Sessions")
        place = {"endpoints": broker.endpoints, "topic": "Sessions", "group": "agents"}
        for name in ("ann", "bob", "carl"):
            client.run(tmp_path, **place, bodies=[f"{name} {number}" for number in range(3)], lite=[name])
        again = {} if not push else {"again": ["bob 1"]}
        got = attempts(client.run(tmp_path, **place, receive=6, lite=["bob", "carl"], push=push, **again))
    for name in ("bob", "carl"):
        own = [(body, attempt) for body, attempt in got if body.startswith(name)]
        assert own[:2] == [(f"{name} 0", 1), (f"{name} 1", 1)]
    assert {body for body, _ in got} == {f"{name} {number}" for name in ("bob", "carl") for number in range(3)}
    assert (("bob 1", 2) in got) == push


def test_accounts_and_tls_let_in_who_has_both(
    client: ForeignClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = loopback_certificate()
    (tmp_path / "server.pem").write_text(certificate + key)
    (tmp_path / "roots.pem").write_text(certificate)
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(tmp_path / "roots.pem"))
    (tmp_path / "accounts.toml").write_text(
        '[[accounts]]\naccessKey = "user"\nsecretKey = "secret"\ntopicPerms = ["T=PUB|SUB"]\ngroupPerms = ["G=SUB"]\n'
        '[[accounts]]\naccessKey = "root"\nsecretKey = "secret"\nadmin = true\n'
    )
    words, has_tls = ["--acl", str(tmp_path / "accounts.toml")], "tls" not in client.lacks
    if has_tls:
        words += ["--tls", "enforcing", "--tls-cert", str(tmp_path / "server.pem")]
    with GrpcServing(tmp_path / "store", *words, **SETTINGS, metrics_port=0) as guarded:
        here = {"endpoints": guarded.endpoints, "topic": "T", "group": "G", "tls": has_tls, "accessKey": "user"}
        client.run(tmp_path, **here, secretKey="secret", bodies=["welcome"])
        assert bodies(client.run(tmp_path, **here, secretKey="secret", receive=1)) == ["welcome"]
        assert UNAUTHORIZED not in metrics_of(guarded)
        with pytest.raises(AssertionError):
            client.run(tmp_path, **here, secretKey="wrong", bodies=["stranger"])
        assert UNAUTHORIZED in metrics_of(guarded)
