"""A byte that flips in a tier costs its message and no other: there is neither a wrong row nor a silent hole."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from history.history_world import HistoryWorld
from tiermq.errors import CorruptRecord, DataLoss
from tiermq.history.arrow_batch import OnCorrupt, decode_run
from tiermq.history.key_lookup import plan_history
from tiermq.history.planning import plan_scan
from tiermq.history.reading import read_task
from tiermq.history.scan_values import Loss, LossReason, ScanCounters, ScanRequest
from tiermq.tier.names import INDEX_TOPIC, SegmentType

COLUMNS = ["queueOffset", "body", "keys", "tags", "_corrupt"]
COUNT = 120


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HistoryWorld]:
    made = HistoryWorld(tmp_path)
    made.open()
    made.put(COUNT)
    made.flush_to_tier()
    yield made
    made.bury()


@pytest.mark.usefixtures("without_sums")
@pytest.mark.parametrize("kind", [SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE])
def test_a_flipped_byte_costs_its_message_and_is_reported(world: HistoryWorld, kind: SegmentType) -> None:
    chance = random.Random(7)
    segments = world.driver.inner._place.segments
    keys = sorted(key for key in segments if key.type is kind and key.topic != INDEX_TOPIC)
    plan = plan_scan(world.catalog(store=False), ScanRequest(), loss_is_error=False)
    history = world.histories[-1]
    sent = {message.offset: message for message in world.sent["orders", 0]}
    unseen = 0
    for _ in range(60):
        key = chance.choice(keys)
        data = segments[key].data
        at, flip = chance.randrange(len(data)), chance.randint(1, 255)
        data[at] ^= flip
        losses: list[Loss] = []
        rows = [
            row
            for task in plan.tasks
            for run in read_task(history, task, ScanCounters(), losses.append)
            for batch in decode_run(run, COLUMNS, task.request)
            for row in batch.to_pylist()
        ]
        data[at] ^= flip
        good = [row for row in rows if row["_corrupt"] is None]
        assert [row["queueOffset"] for row in good] == sorted({row["queueOffset"] for row in good})
        lost = {offset for loss in losses for offset in range(loss.from_offset, loss.to_offset)}
        assert len(good) + len(rows) - len(good) + len(lost) == COUNT
        assert {row["queueOffset"] for row in good} | lost >= sent.keys() - _claimed(rows)
        assert COUNT - len(good) <= 1
        unseen += len(good) == COUNT
        assert all(row["body"] == sent[row["queueOffset"]].body for row in good)
    # Flags, times and tags codes have no checksum in RocketMQ's format: only those of blocks cover them.
    assert unseen < 60


@pytest.mark.parametrize("kind", [SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE])
def test_no_flipped_byte_of_a_block_with_a_checksum_is_read_as_good_data(
    world: HistoryWorld, kind: SegmentType
) -> None:
    chance = random.Random(7)
    segments = world.driver.inner._place.segments
    keys = sorted(key for key in segments if key.type is kind and key.topic != INDEX_TOPIC)
    plan = plan_scan(world.catalog(store=False), ScanRequest(), loss_is_error=False)
    history = world.histories[-1]
    columns = [*COLUMNS, "storeTimestamp", "bornTimestamp", "properties", "flag"]

    def read() -> tuple[list[dict[str, object]], list[Loss]]:
        losses: list[Loss] = []
        runs = [run for task in plan.tasks for run in read_task(history, task, ScanCounters(), losses.append)]
        batches = [batch for run in runs for batch in decode_run(run, columns, plan.tasks[0].request)]
        return [row for batch in batches for row in batch.to_pylist()], losses

    whole, losses = read()
    assert (len(whole), losses) == (COUNT, [])
    for _ in range(60):
        data = segments[chance.choice(keys)].data
        at, flip = chance.randrange(len(data)), chance.randint(1, 255)
        data[at] ^= flip
        rows, losses = read()
        data[at] ^= flip
        lost = {offset for loss in losses for offset in range(loss.from_offset, loss.to_offset)}
        good = [row for row in rows if row["_corrupt"] is None]
        assert len(good) < COUNT
        assert {loss.reason for loss in losses} <= {LossReason.CORRUPT}
        reasons = {row["_corrupt"] for row in rows} - {None}
        assert all(re.fullmatch(r"its block of \d+ bytes at 0 is not what was written", str(each)) for each in reasons)
        assert len(rows) + len(lost) == COUNT
        kept = {row["queueOffset"] for row in good}
        assert good == [row for row in whole if row["queueOffset"] in kept]
    assert read() == (whole, [])


def test_three_flipped_bytes_in_keys_are_an_error_for_scans_and_for_lookups_by_the_true_key(
    world: HistoryWorld,
) -> None:
    world.upload_index()
    segments = world.driver.inner._place.segments
    key = min(key for key in segments if key.type is SegmentType.COMMIT_LOG)
    at = segments[key].data.index(b"key-7")
    segments[key].data[at : at + 3] = b"KEX"
    for request in (ScanRequest(), ScanRequest(keys=frozenset({"key-7"}))):
        plan = plan_history(world.catalog(store=False), request)
        runs = chain.from_iterable(read_task(world.histories[-1], task, ScanCounters()) for task in plan.tasks)
        rows = chain.from_iterable(decode_run(run, COLUMNS, request, on_corrupt=OnCorrupt.RAISE) for run in runs)
        with pytest.raises((CorruptRecord, DataLoss), match="orders"):
            list(rows)


def _claimed(rows: list[dict[str, object]]) -> set[object]:
    """Offsets of damaged rows; some no longer know theirs, and then any one may be it."""
    damaged = [row for row in rows if row["_corrupt"] is not None]
    good = {row["queueOffset"] for row in rows if row["_corrupt"] is None}
    return {offset for offset in range(COUNT) if offset not in good} if damaged else set()


@pytest.mark.usefixtures("without_sums")
def test_damage_is_an_error_where_losses_are(world: HistoryWorld) -> None:
    plan = plan_scan(world.catalog(store=False), ScanRequest())
    segments = world.driver.inner._place.segments
    key = next(key for key in segments if key.type is SegmentType.CONSUME_QUEUE)
    segments[key].data[8] ^= 0x40
    with pytest.raises(DataLoss, match=r"broker-a/orders/0: 1 messages, offsets 0 to 1: corrupt"):
        list(read_task(world.histories[-1], plan.tasks[0], ScanCounters()))
