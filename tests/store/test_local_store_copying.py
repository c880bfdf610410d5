"""What the store offers to those who copy messages out of it, queue by queue."""

from __future__ import annotations

from pathlib import Path

from small_store import numbered, on_disk, on_simulation, put_all
from tiermq import Message
from tiermq.message import decode_records


def test_units_are_listed_over_the_ends_of_files_and_within_bounds() -> None:
    with on_simulation() as store:
        results = put_all(store, 120)
        found = list(store.units_between("T", 0, 45, 105))
        assert [offset for offset, _, _ in found] == list(range(45, 105))
        assert [place for _, place, _ in found] == [result.physical_offset for result in results[45:105]]
        assert list(store.units_between("T", 0, 118, 1 << 40))[-1][0] == 119
        assert list(store.units_between("T", 0, 50, 50)) == []
        assert list(store.units_between("unknown", 0, 0, 10)) == []


def test_collected_records_are_the_store_s_own_but_for_their_place() -> None:
    with on_simulation() as store:
        put_all(store, 60)
        found = store.collect_for_tier("T", 0, 48, 5, 1 << 20, 9_000)
        messages = list(decode_records(found.data))
        assert (found.count, found.next_offset) == (5, 53)
        assert [message.body for message in messages] == numbered(5, 48)
        assert messages[0].physical_offset == 9_000
        assert store.collect_for_tier("unknown", 0, 0, 5, 1 << 20, 0).count == 0


def test_queues_of_batch_topics_are_no_simple_queues(tmp_path: Path) -> None:
    with on_disk(tmp_path / "store", batch_topics=["bulk"]) as store:
        store.put(Message("bulk", b"x"))
        store.put(Message("T", b"x", 3))
        store.dispatch_now()
        assert store.simple_queues() == [("T", 3)]
        assert store.collect_for_tier("bulk", 0, 0, 5, 1 << 20, 0).count == 0
        assert list(store.units_between("bulk", 0, 0, 5)) == []
