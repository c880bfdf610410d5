"""POP after a lost disk: its log is not in the tier, so what was not acknowledged comes back by the group's offset."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

from click.testing import CliRunner

from broker.brokers import SMALL, Producer, broker_config
from broker.pop.pop_peer import PopPeer
from tiermq.broker.broker import Broker
from tiermq.cli.main import cli


def opened(path: Path) -> Broker:
    return Broker.open(path / "store", tier=(path / "tier").as_uri(), config=broker_config(), **SMALL)


def test_what_was_not_acknowledged_is_popped_again_after_the_disk_was_lost(tmp_path: Path) -> None:
    with opened(tmp_path) as broker, ExitStack() as stack:
        producer = Producer(broker)
        stack.callback(producer.client.close)
        for number in range(3):
            assert producer.send("T", b"%d" % number).code == 0
        broker.parts.local.dispatch_now()
        peer = stack.enter_context(PopPeer(broker))
        first = peer.pop(maxMsgNums=1, queueId=0)
        second = peer.pop(maxMsgNums=1, queueId=0)
        third = peer.pop(maxMsgNums=1, queueId=0)
        assert [got.body for got in (*first, *second, *third)] == ["0", "1", "2"]
        for got in (*first, *third):
            assert peer.ack(got).code == 0
        assert broker.parts.offsets.query("G", "T", 0) == 3
    shutil.rmtree(tmp_path / "store")
    restored = CliRunner().invoke(
        cli, ["tier", "restore", (tmp_path / "tier").as_uri(), "--store", str(tmp_path / "store")]
    )
    assert restored.exit_code == 0, restored.output
    with opened(tmp_path) as broker, PopPeer(broker) as peer:
        assert broker.parts.offsets.query("G", "T", 0) == 1
        assert [got.body for got in peer.pop(queueId=0)] == ["1", "2"]
