"""One store directory, two programs: RocketMQ's broker and `LocalStore` take turns, and neither loses anything.

Each turn ends cleanly or by SIGKILL, in the middle of writing. Whoever comes next must serve every message that was
acknowledged, under the offset and the id that were acknowledged, find it by its keys, and go on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from interop import local_writer, workload
from interop.conftest import StartBroker
from interop.local_writer import TOPICS
from interop.peer import Described, Peer, PeerError
from interop.rocketmq import SMALL_FILES, Cluster, python_names
from interop.topics_file import write_topics
from tiermq.errors import StoreLocked
from tiermq.message import StoredMessage
from tiermq.status import GetStatus
from tiermq.store.local_store import LocalStore
from tiermq.store.readonly.check import check_store

pytestmark = pytest.mark.interop

SETTINGS = python_names(SMALL_FILES)
MESSAGES_PER_TURN = 1200
QUEUES = [(topic, queue) for topic, queues in TOPICS for queue in range(queues)]

Acknowledged = dict[tuple[str, int, int], Described]
"""(topic, queue, offset) → what was sent, with the offset id that the acknowledgement gave it."""


def essence(sent: Described) -> Described:
    """What a reader must find of a message."""
    return {
        "body": sent["body"],
        "flag": sent["flag"],
        "keys": sent["keys"],
        "tags": sent["tags"],
        "unique_id": sent["unique_id"],
        "offset_id": sent["offset_id"],
    } | {f"property {name}": value for name, value in sent["properties"].items()}


def essence_served(message: Described, sent: Described) -> Described:
    """The same of a message that RocketMQ's consumer got."""
    properties = message["properties"]
    return {
        "body": message["body"],
        "flag": message["flag"],
        "keys": properties.get("KEYS", "").split(),
        "tags": properties.get("TAGS"),
        "unique_id": properties["UNIQ_KEY"],
        "offset_id": message["offset_id"],
    } | {f"property {name}": properties.get(name) for name in sent["properties"]}


def essence_stored(message: StoredMessage, sent: Described) -> Described:
    """The same of a message that `LocalStore` read."""
    return {
        "body": message.decompressed_body(),
        "flag": message.flag,
        "keys": message.keys,
        "tags": message.tags,
        "unique_id": message.unique_key,
        "offset_id": message.message_id,
    } | {f"property {name}": message.properties.get(name) for name in sent["properties"]}


def acknowledge(acknowledged: Acknowledged, sent: Described, result: Described) -> None:
    place = (sent["topic"], result["queue"], result["offset"])
    assert place not in acknowledged, f"{place} was given twice"
    acknowledged[place] = {**sent, "offset_id": result["offset_id"]}


def messages_of_turn(turn: int) -> Iterator[Described]:
    return workload.messages(TOPICS, MESSAGES_PER_TURN, seed=100 + turn)


# A turn of the broker


def broker_turn(start_broker: StartBroker, store: Path, acknowledged: Acknowledged, turn: int, ending: str) -> None:
    """Serve everything, then take more messages, then end."""
    cluster = start_broker(store, SMALL_FILES)
    peer = cluster.peer()
    for topic, queues in TOPICS:
        peer.create_topic(topic, queues)
    check_broker_serves(peer, acknowledged)
    if ending == "closed":
        for message in messages_of_turn(turn):
            acknowledge(acknowledged, message, peer.send(message))
        cluster.stop()
    else:
        kill_while_sending(cluster, peer, acknowledged, turn)
    assert (store / "abort").exists() == (ending == "killed")


def kill_while_sending(cluster: Cluster, peer: Peer, acknowledged: Acknowledged, turn: int) -> None:
    """Kill the broker when half of the turn's messages are acknowledged and the next ones are on their way."""
    half = threading.Event()

    def send() -> None:
        try:
            for number, message in enumerate(messages_of_turn(turn)):
                acknowledge(acknowledged, message, peer.send(message))
                if number == MESSAGES_PER_TURN // 2:
                    half.set()
        except PeerError:
            half.set()  # What the broker's death looks like from here.

    sender = threading.Thread(target=send)
    sender.start()
    half.wait()
    cluster.kill_broker()
    sender.join()
    cluster.crash()


def check_broker_serves(peer: Peer, acknowledged: Acknowledged) -> None:
    served = {
        (topic, queue, message["offset"]): message for topic, queue in QUEUES for message in peer.read(topic, queue)
    }
    assert_nothing_missing(acknowledged, served.keys())
    for place, sent in acknowledged.items():
        assert essence_served(served[place], sent) == essence(sent)
    for (topic, _, _), sent in list(acknowledged.items())[::97]:
        found = peer.query(topic, sent["unique_id"], unique=True)
        assert [message["offset_id"] for message in found] == [sent["offset_id"]]
        for key in rare_keys(sent):
            found = peer.query(topic, key)
            assert sent["offset_id"] in {message["offset_id"] for message in found}


def rare_keys(sent: Described) -> list[str]:
    """Keys that one message per turn has: a query gives at most 64 hits, collisions of the others included."""
    return [key for key in sent["keys"] if key.startswith("key-")]


def assert_nothing_missing(acknowledged: Acknowledged, found: Iterable[tuple[str, int, int]]) -> None:
    missing = acknowledged.keys() - set(found)
    assert not missing, f"{len(missing)} acknowledged messages are gone, the first is {min(missing)}"


# A turn of LocalStore


def local_turn(store: Path, acknowledged: Acknowledged, turn: int, ending: str) -> None:
    """Read everything, then take more messages, then end; the writer is a process of its own, so that it can die."""
    with LocalStore.open(store, grows=True, **SETTINGS) as local:
        check_local_serves(local, acknowledged)
    command = [sys.executable, local_writer.__file__, str(store), json.dumps(SETTINGS), str(MESSAGES_PER_TURN)]
    with subprocess.Popen(
        [*command, str(100 + turn)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for number, (message, line) in enumerate(zip(messages_of_turn(turn), writer.stdout, strict=False)):
            acknowledge(acknowledged, message, json.loads(line))
            if ending == "killed" and number == MESSAGES_PER_TURN // 2:
                writer.kill()
                break
        writer.stdin.close()
        writer.wait()
        assert writer.returncode == (-9 if ending == "killed" else 0)
    assert (store / "abort").exists() == (ending == "killed")


def check_local_serves(local: LocalStore, acknowledged: Acknowledged) -> None:
    stored = {(topic, queue, m.queue_offset): m for topic, queue in QUEUES for m in read_queue(local, topic, queue)}
    assert_nothing_missing(acknowledged, stored.keys())
    for place, sent in acknowledged.items():
        assert essence_stored(stored[place], sent) == essence(sent)
    for (topic, _, _), sent in list(acknowledged.items())[::97]:
        for key in (sent["unique_id"], *rare_keys(sent)):
            hits = local.query(topic, key).messages
            assert sent["offset_id"] in {hit.message_id for hit in hits}


def read_queue(local: LocalStore, topic: str, queue_id: int) -> Iterator[StoredMessage]:
    offset = 0
    while (page := local.get(topic, queue_id=queue_id, offset=offset, max_messages=32)).status is GetStatus.FOUND:
        yield from page.messages
        offset = page.next_offset


# The promises


@pytest.mark.parametrize("broker_ends", ["closed", "killed"])
@pytest.mark.parametrize("local_ends", ["closed", "killed"])
def test_what_a_broker_began_both_can_go_on_with(
    broker_ends: str, local_ends: str, tmp_path: Path, start_broker: StartBroker
) -> None:
    store = tmp_path / "store"
    acknowledged: Acknowledged = {}
    broker_turn(start_broker, store, acknowledged, 1, broker_ends)
    local_turn(store, acknowledged, 2, local_ends)
    broker_turn(start_broker, store, acknowledged, 3, broker_ends)
    with LocalStore.open(store, grows=True, **SETTINGS) as local:
        check_local_serves(local, acknowledged)
    assert check_store(store, slot_count=SETTINGS["max_hash_slot_num"]).problems == []


@pytest.mark.parametrize("local_ends", ["closed", "killed"])
def test_what_local_store_began_a_broker_can_go_on_with(
    local_ends: str, tmp_path: Path, start_broker: StartBroker
) -> None:
    store = tmp_path / "store"
    acknowledged: Acknowledged = {}
    local_turn(store, acknowledged, 1, local_ends)
    write_topics(store, TOPICS)
    broker_turn(start_broker, store, acknowledged, 2, "closed")
    local_turn(store, acknowledged, 3, "closed")
    assert len(list((store / "commitlog").iterdir())) >= 3


def test_a_directory_that_a_broker_runs_on_cannot_be_opened(tmp_path: Path, start_broker: StartBroker) -> None:
    store = tmp_path / "store"
    start_broker(store, SMALL_FILES)
    with pytest.raises(StoreLocked):
        LocalStore.open(store, grows=True, **SETTINGS)


def test_a_broker_does_not_start_on_a_directory_that_is_open_here(tmp_path: Path, start_broker: StartBroker) -> None:
    store = tmp_path / "store"
    with LocalStore.open(store, grows=True, **SETTINGS) as local:
        for message in messages_of_turn(1):
            local_writer.put(local, message)
        local.dispatch_now()
        with pytest.raises(AssertionError, match="boot success"):
            start_broker(store, SMALL_FILES)
        assert sum(1 for topic, queue in QUEUES for _ in read_queue(local, topic, queue)) == MESSAGES_PER_TURN
