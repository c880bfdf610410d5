"""`tiermq broker drain`: a broker is emptied into its bucket, and proves it, before it is taken away with its disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.consuming import Peer
from cli.standbys import replicas
from cli.test_restore_tables import World
from cli.wire_commands import Shell, shell
from tiermq.client.cluster_client import Access
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.testing import LocalBroker
from waiting import until


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def drained(world: World | Shell, *words: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(world.run("broker", "drain", *words, "--json", code=code).stdout)
    assert found["drained"] == (code == 0)
    return found


def left_by(world: World | Shell, name: str) -> dict[str, Any]:
    """What a drain is waiting for when all copies are compared."""
    while (found := drained(world, name, "--timeout", "0", code=1))["notProven"]:
        pass
    return found


def test_everything_of_a_drained_broker_comes_back_without_its_disk(world: World) -> None:
    with world.serving():
        world.fill()
        found = left_by(world, "b1")
        assert found["left"] == ["not consumed: 5 messages of orders by audit"]  # Four of a queue without an offset.
        assert found["notUploaded"] == {"queues": 0, "messages": 0, "stopped": 0}
        shown = world.run("broker", "drain", "b1", "--timeout", "0", code=1)
        assert shown.stdout == "b1: not drained:\n  not consumed: 5 messages of orders by audit\n"
        refused = world.run("produce", "orders", "late", code=1)
        assert "found only queues to read" in refused.output
        assert world.bodies(1, "orders", "--group", "audit", "--queue", "0") == ["zero-3"]
        assert world.bodies(4, "orders", "--group", "audit", "--queue", "1", "--from", "first") == [
            f"one-{number}" for number in range(4)
        ]
        shown = world.run("broker", "drain", "b1")
        assert shown.stdout == (f"b1: drained: {world.tier} has every message, compared byte for byte; stop it now\n")
    world.lose_disk()
    world.restore()
    with world.serving():
        sent = sorted(f"{name}-{number}" for name in ("zero", "one") for number in range(4))
        assert world.bodies(8, "orders", "--from", "first", "--group", "again") == sent
        assert world.bodies(1, "payments", "--from", "first", "--group", "again") == ["paid"]


def test_name_servers_show_a_drained_broker_as_readable_only_and_a_cancel_opens_it_again(world: World) -> None:
    with world.serving():
        world.fill()

        def writable() -> bool:
            found = Access(world.name_server).run(lambda cluster: cluster.find_route("orders"))
            assert found is not None
            assert found.readable
            return bool(found.writable)

        assert writable()
        drained(world, "b1", "--unread")
        until(lambda: not writable())
        assert world.run("broker", "drain", "b1", "--cancel").stdout == "b1: takes messages again\n"
        until(writable)
        world.run("produce", "orders", "again", "--queue", "2")
        assert world.bodies(1, "orders", "--group", "again", "--queue", "2", "--from", "first") == ["again"]


def test_a_drain_waits_for_a_connected_group_that_has_committed_nothing(tmp_path: Path) -> None:
    """But for members of a broadcasting group, which keep their offsets themselves: the broker does not know them."""
    with shell(tmp_path, tier=(tmp_path / "tier").as_uri()) as at:
        at.broker.send("orders", b"unread")
        with Peer(at.broker.broker) as member:
            member.join("audit", topic="orders")
            assert left_by(at, "broker-a")["left"] == ["not consumed: 1 messages of orders by audit"]
        with Peer(at.broker.broker) as member:
            member.join("audit", topic="orders", model="BROADCASTING")
            assert drained(at, "broker-a")["left"] == []


def test_a_drain_waits_for_what_the_broker_delivers_later_and_takes_it_along(tmp_path: Path) -> None:
    with shell(tmp_path, tier=(tmp_path / "tier").as_uri()) as at:
        at.broker.send("orders", b"delayed", properties={"DELAY": "18"})
        at.broker.send("orders", b"timed", properties={"TIMER_DELAY_SEC": "3600"})
        found = left_by(at, "broker-a")
        assert found["left"] == ["delayed messages: 1", "timers: 1"]
        at.broker.advance(hours=3)
        until(lambda: len(at.broker.messages("orders")) == 2)
        found = drained(at, "broker-a")
        assert found["held"] == {}
        shown = at.run("tier", "cat", (tmp_path / "tier").as_uri(), "--topic", "orders", "--json").stdout
        assert len(shown.splitlines()) == 2


def test_a_copy_in_the_tier_that_went_bad_is_found_and_repaired_by_the_drain(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    with shell(tmp_path, tier=tier.as_uri()) as at:
        for number in range(50):
            at.broker.send("orders", b"order %d" % number)
        store = at.broker.broker.parts.tiered
        assert store is not None
        assert store.flush_to_tier()
        (segment,) = tier.glob("*/*/orders/0/COMMIT_LOG/*")
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 1
        segment.write_bytes(data)
        drained(at, "broker-a")
        assert at.run("tier", "verify", tier.as_uri()).exit_code == 0
        assert "tiermq_tier_proof_repairs_total 1" in at.broker.broker.render_metrics()


def test_messages_that_are_never_uploaded_keep_a_broker_until_they_are_left(tmp_path: Path) -> None:
    with shell(tmp_path, tier=(tmp_path / "tier").as_uri()) as at:
        at.broker.send("orders", b"kept")
        at.broker.send("RMQ_SYS_TRACE_TOPIC", b"a trace")
        found = left_by(at, "broker-a")
        assert found["localOnly"] == {"RMQ_SYS_TRACE_TOPIC": 1}
        assert found["left"] == ["only on the disk, since it is never uploaded: 1 messages of RMQ_SYS_TRACE_TOPIC"]
        assert drained(at, "broker-a", "--leave", "RMQ_SYS_*")["left"] == []


def test_of_replicas_the_master_is_drained_and_one_that_takes_over_takes_messages(tmp_path: Path) -> None:
    with replicas(tmp_path, "--tier", (tmp_path / "tier").as_uri()) as of:
        first = of.start("a")
        until(lambda: of.is_master(first))
        second = of.start("b")
        until(lambda: len(of.in_sync(first)) == 2)
        until(lambda: of.master() == first.address)
        refused = of.run("broker", "drain", f"127.0.0.1:{second.port}", code=1)
        assert "expected the master of b1, found a slave: its master uploads" in refused["said"]
        assert of.run("broker", "drain", "b1")["drained"]
        assert answer_at(first.port, "orders").code == ResponseCode.SERVICE_NOT_AVAILABLE
        of.run("broker", "demote", "b1")
        until(lambda: of.is_master(second))
        until(lambda: answer_at(second.port, "orders").code == ResponseCode.SUCCESS)


def test_a_broker_without_a_tier_refuses_and_goes_on(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        shown = at.run("broker", "drain", "broker-a", code=1)
        assert "expected a broker with a tier, into which it can be emptied, found one without" in shown.output
        at.broker.send("orders", b"still taken")


def test_every_kind_of_send_is_refused_while_retries_are_taken(tmp_path: Path) -> None:
    with shell(tmp_path, tier=(tmp_path / "tier").as_uri()) as at:
        at.broker.create_topic("orders", queues=1)
        at.broker.send("orders", b"known to the fast path")
        drained(at, "broker-a")
        answers = [answer_of(at.broker, topic) for topic in ("orders", "new", "%RETRY%audit")]
        not_here = ResponseCode.SERVICE_NOT_AVAILABLE
        assert [each.code for each in answers] == [not_here, not_here, ResponseCode.SUCCESS]
        assert answers[0].remark is not None
        assert answers[0].remark.endswith("found that it is being drained: send to another one")


def answer_of(broker: LocalBroker, topic: str) -> RemotingCommand:
    return answer_at(int(broker.address.rpartition(":")[2]), topic)


def answer_at(port: int, topic: str) -> RemotingCommand:
    ext = {
        "producerGroup": "P", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "1", "queueId": "0",
        "sysFlag": "0", "bornTimestamp": "0", "flag": "0", "properties": "", "reconsumeTimes": "0",
    }  # fmt: skip
    with BlockingClient("127.0.0.1", port) as client:
        return client.request(RemotingCommand(RequestCode.SEND_MESSAGE, ext=ext, body=b"x"))
