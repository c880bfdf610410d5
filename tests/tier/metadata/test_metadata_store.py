"""The store as a whole: reload, cost of a commit, deletion of a topic, death in the middle of commits."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.manual_clock import ManualClock
from tier.metadata.metadata_samples import QUEUE, index_key, log_key, units_key
from tiermq.errors import SegmentMissing
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Gap, TimeEntry


def commit(store: MetadataStore, number: int) -> None:
    """What one batch of a queue costs: log, units, time entry, all at once."""
    with store.transaction():
        store.update_size(log_key(0), 100 * number, 1, number, number, begin_offset=0, end_offset=number)
        store.update_size(units_key(0), 20 * number, 1, number)
        store.add_time_entries(QUEUE, [TimeEntry(number, number, 100 * number)])


def fill(store: MetadataStore) -> None:
    store.add_topic("orders", 72, 1 << 30)
    store.add_queue(QUEUE)
    for key in (log_key(0), units_key(0), index_key(0)):
        store.add_segment(key)
    store.add_gap(QUEUE, Gap(1, 2, "lost", 3))
    commit(store, 5)


def everything(store: MetadataStore) -> tuple[object, ...]:
    return (
        store.topics(), store.queues(), store.all_segments(), store.gaps(QUEUE), store.time_entries(QUEUE),
        store.topic_serial_number(),
    )  # fmt: skip


def test_everything_is_there_again_after_a_restart(tmp_path: Path, manual_clock: ManualClock) -> None:
    with MetadataStore(tmp_path / "tier.db", clock=manual_clock) as store:
        assert store.is_empty()
        fill(store)
        before = everything(store)
    with MetadataStore(tmp_path / "tier.db") as store:
        assert everything(store) == before
        assert not store.is_empty()


def written_bytes(path: Path, statements: list[str], other_segments: int) -> int:
    """Bytes that one commit writes, beside so many segments of other queues; its statements are left in the list."""
    with MetadataStore(path, trace=statements.append) as store:
        fill(store)
        with store.transaction():
            for base in range(1, other_segments):
                store.add_segment(log_key(base, QUEUE))
        commit(store, 6)
        with sqlite3.connect(path) as other:
            assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        other.close()
        statements.clear()
        commit(store, 7)
        return path.with_name(path.name + "-wal").stat().st_size


def test_gap_04_a_commit_costs_the_same_however_many_segments_there_are(tmp_path: Path) -> None:
    few: list[str] = []
    many: list[str] = []
    bytes_of_few = written_bytes(tmp_path / "few.db", few, 10)
    bytes_of_many = written_bytes(tmp_path / "many.db", many, 3000)
    assert [text.split()[0] for text in many] == [text.split()[0] for text in few]
    assert [text.split()[0] for text in many] == [
        "BEGIN", "UPDATE", "UPDATE", "UPDATE", "UPDATE", "INSERT", "COMMIT",
    ]  # fmt: skip
    # A leaf page per changed row, whatever the height of the tree: a rewrite would be hundreds of pages.
    assert bytes_of_many <= bytes_of_few + 3 * 4200
    assert bytes_of_many < 40_000


def test_deleting_a_topic_forgets_it_at_once_and_leaves_its_objects_to_the_sweep(store: MetadataStore) -> None:
    fill(store)
    store.add_topic("payments")
    assert store.delete_topic("orders")
    assert [topic.name for topic in store.topics()] == ["payments"]
    assert (store.queues(), store.gaps(QUEUE), store.time_entries(QUEUE)) == ([], [], [])
    assert [segment.key for segment in store.segments_being_deleted()] == [log_key(0), units_key(0)]
    assert [segment.key for segment in store.all_segments()] == [index_key(0)]
    assert not store.delete_topic("nothing")


COMMITS_UNTIL_KILLED = """
import sys
from tiermq.tier.metadata.metadata_store import MetadataStore
from tier.metadata.test_metadata_store import commit, fill
store = MetadataStore(sys.argv[1])
fill(store)
print("ready", flush=True)
for number in range(6, 10_000_000):
    commit(store, number)
    print(number, flush=True)
"""


@pytest.mark.crash
@pytest.mark.parametrize("commits", [1, 7, 40])
def test_a_kill_between_any_two_statements_leaves_one_whole_commit(tmp_path: Path, commits: int) -> None:
    path = tmp_path / "tier.db"
    command = [sys.executable, "-c", COMMITS_UNTIL_KILLED, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        acknowledged = [child.stdout.readline().strip() for _ in range(commits + 1)]
        child.send_signal(signal.SIGKILL)
        acknowledged += [line.strip() for line in child.stdout]
    last = max(int(number) for number in acknowledged if number.isdigit())
    with MetadataStore(path) as store:
        log, units = store.segments(QUEUE)
        number = log.end_offset
        assert number in (last, last + 1)
        assert (log.size, units.size, log.crc32) == (100 * number, 20 * number, number)
        queue = store.queue(QUEUE)
        assert queue is not None
        assert queue.max_offset == number
        entry = store.last_time_entry(QUEUE)
        assert entry == TimeEntry(number, number, 100 * number)


def test_what_is_done_together_answers_is_durable_and_fails_alone(store: MetadataStore, tmp_path: Path) -> None:
    assert store.together(lambda: store.add_topic("orders")).name == "orders"
    with MetadataStore(tmp_path / "tier.db") as other:
        assert [topic.name for topic in other.topics()] == ["orders"]

    def fail() -> None:
        store.add_topic("never")
        raise SegmentMissing("one who fails")

    with pytest.raises(SegmentMissing):
        store.together(fail)
    assert store.topic("never") is None
