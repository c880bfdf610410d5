"""Topics and their ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.manual_clock import ManualClock
from tiermq.errors import TierError
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Topic


def test_ids_count_from_zero_in_the_order_of_creation(store: MetadataStore) -> None:
    assert store.topic_serial_number() == -1
    assert [store.add_topic(name).id for name in ("b", "a", "c")] == [0, 1, 2]
    assert [topic.name for topic in store.topics()] == ["b", "a", "c"]


def test_an_existing_topic_is_returned_unchanged(store: MetadataStore) -> None:
    first = store.add_topic("orders", reserve_time_hours=72)
    assert store.add_topic("orders", reserve_time_hours=1, max_bytes=5) == first
    assert store.topic("orders") == first


def test_a_topic_created_again_gets_a_new_id_also_after_a_restart(tmp_path: Path) -> None:
    with MetadataStore(tmp_path / "tier.db") as store:
        assert store.add_topic("orders").id == 0
        assert store.delete_topic("orders")
    with MetadataStore(tmp_path / "tier.db") as store:
        assert store.topic("orders") is None
        assert store.add_topic("orders").id == 1


def test_attributes_change_one_by_one(store: MetadataStore, manual_clock: ManualClock) -> None:
    store.add_topic("orders")
    manual_clock.advance_ms(5)
    assert store.update_topic("orders", reserve_time_hours=24)
    assert store.update_topic("orders", max_bytes=1 << 40)
    assert store.update_topic("orders", status=1)
    assert store.topic("orders") == Topic(0, "orders", 1, 24, 1 << 40, manual_clock.now_ms())


def test_updating_an_unknown_topic_changes_nothing(store: MetadataStore) -> None:
    assert not store.update_topic("orders", status=1)
    assert store.topics() == []


def test_topics_may_be_deleted_while_they_are_iterated(store: MetadataStore) -> None:
    for name in ("a", "b", "c"):
        store.add_topic(name)
    for topic in store.topics():
        store.delete_topic(topic.name)
    assert store.topics() == []


def test_a_given_id_moves_the_counter_and_is_never_given_again(store: MetadataStore) -> None:
    store.put_topic(Topic(41, "restored"))
    assert store.add_topic("next").id == 42


def test_two_topics_never_share_an_id(store: MetadataStore) -> None:
    store.put_topic(Topic(7, "orders"))
    with pytest.raises(TierError, match="'orders'"):
        store.put_topic(Topic(7, "payments"))
    assert store.topic("payments") is None
    store.put_topic(Topic(7, "orders", status=1))  # The same topic again is a replacement.
