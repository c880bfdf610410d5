"""Counting: hot paths count in plain numbers of their own; once a second the statistics take the differences over."""

from __future__ import annotations

from tiermq.commitlog.commit_log import CommitLog
from tiermq.store.reading import Reader
from tiermq.store.statistics import StoreStatistics


class Counting:
    """Remembers what was taken over already. Used by the housekeeping thread alone."""

    def __init__(self, log: CommitLog, reader: Reader, statistics: StoreStatistics) -> None:
        self._log = log
        self._reader = reader
        self._statistics = statistics
        self._puts: dict[tuple[str, int], tuple[int, int]] = {}
        self._gets = (0, 0, 0)

    def take_over(self) -> None:
        for handle in self._log.appender.handles():
            name = (handle.topic, handle.queue_id)
            puts, stored_bytes = self._puts.get(name, (0, 0))
            if handle.puts > puts:
                self._statistics.add_puts(handle.topic, handle.stored_bytes - stored_bytes, handle.puts - puts)
            self._puts[name] = (handle.puts, handle.stored_bytes)
        reader = self._reader
        gets = (reader.found_count, reader.missed_count, reader.transferred_count)
        self._statistics.add_gets(*(now - before for now, before in zip(gets, self._gets, strict=True)))
        self._gets = gets
        self._statistics.sample()
