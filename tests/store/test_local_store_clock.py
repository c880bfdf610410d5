"""Store times never go back within a log, however a put got there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulation.manual_clock import ManualClock
from tiermq import Message
from tiermq.store.local_store import LocalStore


class TickingClock(ManualClock):
    """A millisecond passes each time it is read."""

    def now_ms(self) -> int:
        self.advance_ms(1)
        return super().now_ms()


def test_store_times_of_a_list_do_not_go_back_behind_a_message_that_took_the_slow_path(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"mapped_file_size_commit_log": 4096, "max_hash_slot_num": 10, "max_index_num": 100}
    with LocalStore.open(tmp_path, clock=TickingClock(), background=False, **sizes) as store:
        # Each new topic is bound on the slow path, and the log rolls over several files.
        messages = [Message(f"T{number % 7}", bytes(200)) for number in range(60)]
        results = store.put_many(messages)
        assert results.all_ok
        times = [store.message_at(result.physical_offset).store_timestamp_ms for result in results]  # type: ignore[union-attr]
        assert times == [result.store_timestamp_ms for result in results]
        assert times == sorted(times)
