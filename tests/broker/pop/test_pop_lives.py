"""Lives of a broker by chance: pops, acknowledgements, clocks that are set back, kills and orderly ends.

Whatever happens, a message that was acknowledged in time is never given out again, every other one is, and at the end
each is given out once more at most.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from broker.consuming import put, running
from broker.pop.pop_peer import MINUTE_MS, Got, PopPeer, pops, revive
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.broker.pop.pop_acks import Receipt
from tiermq.broker.pop.pop_checkpoints import PoppedMessage
from tiermq.broker.pop.pop_topics import real_topic

LIVES = 5
STEPS = 25


class Model:
    """What was sent, what a consumer has now, and what it acknowledged in time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.sent: list[str] = []
        self.held: list[Got] = []
        self.acked: set[str] = set()

    def step(self, broker: Broker, peer: PopPeer, clock: ManualClock) -> None:
        action = self.chance.choice(("put", "pop", "pop", "ack", "ack", "time", "clock", "revive", "flush", "commit"))
        if action == "put":
            bodies = [f"m{len(self.sent) + number}" for number in range(self.chance.randint(1, 5))]
            put(broker, *bodies, queue_id=self.chance.randrange(2))
            self.sent += bodies
        elif action == "pop":
            self.take(peer.pop(maxMsgNums=self.chance.randint(1, 8)))
        elif action in ("ack", "time") and self.held:
            got = self.held.pop(self.chance.randrange(len(self.held)))
            is_open = is_held(broker, got)
            if action == "ack":
                assert peer.ack(got).code == 0
                if is_open:
                    self.acked.add(got.body)
            elif is_open:
                assert peer.change_time(got, self.chance.randint(0, MINUTE_MS)).code == 0
        elif action == "clock":
            clock.advance_ms(self.chance.choice((1, 1_000, MINUTE_MS, -1, -1_000, -MINUTE_MS, -5 * MINUTE_MS)))
        elif action == "revive":
            pops(broker).revive.run_once()
            broker.parts.local.dispatch_now()
        elif action == "flush":
            broker.parts.offsets.flush()
        elif action == "commit":
            pops(broker).log.commit()

    def take(self, got: list[Got]) -> None:
        again = self.acked.intersection(each.body for each in got)
        assert not again, f"acknowledged, and given out again: {again}"
        self.held += got


def is_held(broker: Broker, got: Got) -> bool:
    """Whether a receipt is good: its check point has the message."""
    receipt = Receipt.decode(got.receipt, got.message.queue_offset)
    topic = real_topic("G", "T", receipt.mark)
    point = pops(broker).log.points.find(
        PoppedMessage("G", topic, receipt.queue_id, receipt.start_offset, receipt.pop_ms)
    )
    return point is not None and receipt.offset in point.open


def killed(path: Path, target: Path) -> Path:
    """What is in files when the process is killed now."""

    def copied(source: str, copy: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # A file that is being put in another's place.
            shutil.copy2(source, copy)

    shutil.copytree(path, target, copy_function=copied)
    return target


@pytest.mark.parametrize("seed", range(4))
def test_acknowledged_messages_stay_so_and_the_others_come_back_once(
    tmp_path: Path, manual_clock: ManualClock, seed: int
) -> None:
    model, path = Model(seed), tmp_path / "0"
    for life in range(1, LIVES + 1):
        with running(path, clock=manual_clock) as broker, PopPeer(broker) as peer:
            for _ in range(STEPS):
                model.step(broker, peer, manual_clock)
            if model.chance.random() < 0.8:
                path = killed(path, tmp_path / str(life))
    with running(path, clock=manual_clock) as broker, PopPeer(broker) as peer:
        drained: list[str] = []
        manual_clock.advance_ms(60 * MINUTE_MS)
        revive(broker)
        while got := peer.pop():
            model.take(got)
            drained += [each.body for each in got]
            for each in got:
                peer.ack(each)
        assert len(drained) == len(set(drained)), "given out twice"
        assert set(drained) | model.acked == set(model.sent)
