"""Writers that race for one queue's manifest, over whatever driver a test gives them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from tier.metadata.manifest_values import SAMPLE
from tier.metadata.metadata_samples import QUEUE
from tiermq.errors import StaleWriter
from tiermq.tier.metadata.manifest_store import ManifestStore


def run_all(tasks: Sequence[Callable[[], None]], on_error: Callable[[], None]) -> None:
    """Run the tasks at once and wait for them; an error of any of them is an error of the test.

    `on_error` frees the others, so that a test fails where it would otherwise hang.
    """
    errors: list[BaseException] = []

    def guarded(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001 (handed to the test)
            errors.append(error)
            on_error()

    threads = [threading.Thread(target=guarded, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def check_race(stores: Sequence[ManifestStore], writes: int) -> None:
    """All acquire at once, then all write at once: the highest epoch wins, every other writer gets the error."""
    epochs: dict[int, int] = {}
    stopped: list[int] = []
    together = threading.Barrier(len(stores))

    def run(number: int) -> None:
        together.wait()
        epochs[number] = stores[number].acquire(QUEUE)
        together.wait()
        try:
            for count in range(writes):
                stores[number].write(replace(SAMPLE, max_offset=count))
        except StaleWriter:
            stopped.append(number)

    run_all([partial(run, number) for number in range(len(stores))], together.abort)
    assert sorted(epochs.values()) == list(range(1, len(stores) + 1))
    winner = max(epochs, key=lambda number: epochs[number])
    assert sorted(stopped) == sorted(set(epochs) - {winner})
    final = stores[0].read(QUEUE)
    assert final is not None
    assert (final.epoch, final.sequence, final.max_offset) == (len(stores), writes, writes - 1)


def check_take_over(old: ManifestStore, new: ManifestStore) -> None:
    """One writes without end; another acquires in the middle; nothing of the old one is seen after that."""
    old.acquire(QUEUE)
    busy, failed, written = threading.Event(), threading.Event(), 0
    seen: list[int] = []

    def write_until_reported() -> None:
        nonlocal written
        try:
            while not failed.is_set():
                written += 1
                old.write(replace(SAMPLE, max_offset=written))
                busy.set()
        except StaleWriter:
            busy.set()

    def take_over() -> None:
        busy.wait()
        assert new.acquire(QUEUE) == 2
        for _ in range(5):
            taken = new.read(QUEUE)
            assert taken is not None
            assert taken.epoch == 2
            seen.append(taken.max_offset)

    run_all([write_until_reported, take_over], failed.set)
    assert len(set(seen)) == 1
    # The new writer took over what the old one had written last, and not one write less.
    assert seen[0] == written - 1
