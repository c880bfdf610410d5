"""What was acknowledged under SYNC_FLUSH survives a power cut at any moment."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import Producer, broker_config, running, send_command
from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from small_store import SIZES, bodies, power_cut
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.command import HeaderType
from tiermq.remoting.frame import decode_frame, encode_frame
from tiermq.remoting.limits import ServerLimits
from tiermq.store.local_store import LocalStore

PRODUCERS = 3
CUTS = 6
COUNT = 60_000


class Acknowledged:
    """Bodies that were sent and answered SUCCESS, in no order."""

    def __init__(self) -> None:
        self.bodies: set[bytes] = set()
        self.count = threading.Semaphore(0)
        self.ending = threading.Event()

    def add(self, bodies_sent: list[bytes]) -> None:
        self.bodies.update(bodies_sent)
        self.count.release()


def produce(producer: Producer, name: int, acknowledged: Acknowledged) -> None:
    number = 0
    while not acknowledged.ending.is_set():
        sent = [b"%d of %d, %d" % (number, name, part) for part in range(1 + 2 * (number % 3 == 2))]
        is_batch = len(sent) > 1
        body = encode_client_batch(BatchElement(0, each, b"") for each in sent) if is_batch else sent[0]
        answer = producer.send(body=body, batch=is_batch, queue=name)
        assert answer.code == ResponseCode.SUCCESS, answer
        acknowledged.add(sent)
        number += 1


@pytest.mark.parametrize("pool", [False, True], ids=["mapped", "transient-pool"])
def test_no_acknowledged_message_is_lost_by_a_power_cut(tmp_path: Path, pool: bool) -> None:
    access = SimulatedFileAccess()
    settings: dict[str, Any] = {**SIZES, "flush_disk_type": "SYNC_FLUSH", "transient_store_pool_enable": pool}
    acknowledged = Acknowledged()
    cuts: list[tuple[set[bytes], SimulatedFileAccess]] = []
    with running(tmp_path, access=access, **settings) as broker:
        producers = [Producer(broker) for _ in range(PRODUCERS)]
        threads = [
            threading.Thread(target=produce, args=(producer, name, acknowledged))
            for name, producer in enumerate(producers)
        ]
        for thread in threads:
            thread.start()
        for _ in range(CUTS):
            for _ in range(10):
                assert acknowledged.count.acquire(timeout=60)
            before = set(acknowledged.bodies)  # First what is owed, then the cut: more may have come between.
            cuts.append((before, power_cut(access)))
        acknowledged.ending.set()
        for thread in threads:
            thread.join()
        for producer in producers:
            producer.client.close()
    root = tmp_path / "store"
    for owed, disk in cuts:
        with LocalStore.open(root, access=disk, clock=ManualClock(), background=False, **settings) as after:
            after.flush()
            after.dispatch_now()
            found = {body for queue in range(PRODUCERS) for body in bodies(after, "T", queue)}
            assert owed <= found


def test_a_producer_that_reads_no_answers_is_not_read_from_and_loses_nothing(tmp_path: Path) -> None:
    high = 64 * 1024
    limits = ServerLimits(write_high_bytes=high, write_bytes_max=4 * 1024 * 1024)
    with running(tmp_path, limits=limits, mapped_file_size_commit_log=16 * 1024 * 1024) as broker:
        broker.parts.topics.put(TopicConfig("T", 1, 1))
        command = send_command()
        command.header_type = HeaderType.ROCKETMQ
        flood = encode_frame(command) * COUNT
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
            peer.connect(("127.0.0.1", broker.port))
            sending = threading.Thread(target=peer.sendall, args=(flood,))
            sending.start()
            server = broker.parts.server
            while not any(each._write_is_paused for each in set(server.connections)):  # Until it is held back.
                assert broker.parts.local.put_count < COUNT, "all answers fit into buffers of the kernel: send more"
                threading.Event().wait(0.001)
            with Producer(broker) as other:
                assert other.send().code == ResponseCode.SUCCESS
            unsent = max(each.unsent_bytes for each in set(server.connections))
            assert unsent < high + 512 * 1024
            assert broker.parts.local.put_count < COUNT
            assert answers(peer) == COUNT
            sending.join()
        assert broker.parts.local.put_count == COUNT + 1


def answers(peer: socket.socket) -> int:
    """How many answers came until there were as many as requests; each must be SUCCESS."""
    found, kept = 0, b""
    while found < COUNT:
        data = peer.recv(256 * 1024)
        assert data, "the broker closed the connection"
        kept += data
        at = 0
        while len(kept) - at >= 4:
            length = 4 + int.from_bytes(kept[at : at + 4], "big")
            if len(kept) - at < length:
                break
            assert decode_frame(kept[at : at + length]).code == ResponseCode.SUCCESS
            found += 1
            at += length
        kept = kept[at:]
    return found


def test_sends_to_topics_that_must_be_made_are_bounded_too(tmp_path: Path) -> None:
    config = broker_config(send_thread_pool_queue_capacity=3)
    with running(tmp_path, config=config) as broker, Producer(broker) as producer:
        lock = broker.parts.topics._lock
        with lock:  # No topic can be made now.
            waiting = [producer.client.request_later(send_command("New")) for _ in range(3)]
            assert producer.send("New").code == ResponseCode.SYSTEM_BUSY
            assert producer.send("Other").code == ResponseCode.SYSTEM_BUSY
        assert [each.result().code for each in waiting] == [ResponseCode.SUCCESS] * 3
        assert producer.send("Other").code == ResponseCode.SUCCESS
