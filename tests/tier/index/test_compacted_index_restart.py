"""What a key look-up costs right after a start, when nothing of the uploaded files is in memory."""

from __future__ import annotations

import dataclasses

from tier.index.index_world import EVER, TINY, World

FILES = 3


def uploaded_world() -> World:
    """Three index files in the tier, each with one message of the key, and of other keys of its slot."""
    world = World(settings=dataclasses.replace(TINY, slots=3, capacity=20))
    store = world.open()
    for number in range(FILES):
        world.commit_and_put(store, "orders", 0, "wanted", f"other-{number}", f"more-{number}")
        store.seal()
        while store.run_once() == 0.0:
            continue
    store.close()
    return world


def test_one_read_for_each_small_file_also_right_after_a_start() -> None:
    world = uploaded_world()
    store = world.open()
    assert [state.name for _, state in store.states()] == ["UPLOAD"] * FILES
    for _ in range(2):
        world.driver.calls.clear()
        assert len(store.query("orders", "wanted", 10, *EVER).hits) == FILES
        assert world.driver.calls["read"] == FILES  # Its items are fewer than a slot and a run are worth.
    store.close()


def test_what_a_companion_reports_is_asked_for_once_in_a_life() -> None:
    world = uploaded_world()
    for _ in range(2):
        store = world.open()
        world.driver.calls.clear()
        for _ in range(3):
            store.query("orders", "wanted", 10, *EVER)
        assert world.driver.calls["get_object"] == FILES
        store.close()


def test_without_companions_the_first_question_reads_the_beginning_of_each_file_too() -> None:
    world = uploaded_world()
    for name in world.driver.inner.list_objects():
        world.driver.inner.delete_object(name)
    store = world.open()
    for reads in (3, 2):
        world.driver.calls.clear()
        assert len(store.query("orders", "wanted", 10, *EVER).hits) == FILES
        assert world.driver.calls["read"] == reads * FILES
    store.close()
