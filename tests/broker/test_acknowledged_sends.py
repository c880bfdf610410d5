"""What was acknowledged under SYNC_FLUSH survives a power cut at any moment."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from broker.brokers import Producer, running
from simulation.simulated_files import SimulatedFileAccess
from small_store import SIZES, bodies, power_cut
from tiermq import LocalStore
from tiermq.clock import ManualClock
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.remoting.codes import ResponseCode

PRODUCERS = 3
CUTS = 6


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
    settings = {**SIZES, "flush_disk_type": "SYNC_FLUSH", "transient_store_pool_enable": pool}
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
