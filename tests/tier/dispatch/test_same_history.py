"""A queue in the tier and the local queue of its name are the same, or nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.manual_clock import ManualClock
from small_store import on_disk, put_all
from tiermq.errors import StaleWriter
from tiermq.tier.dispatch.dispatch_step import NoIndex, execute
from tiermq.tier.dispatch.local_source import LocalStoreSource, require_same_history
from tiermq.tier.dispatch.plan import Init, Upload
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.metadata.metadata_store import MetadataStore


def test_another_message_under_the_newest_number_is_found_out(tmp_path: Path) -> None:
    clock = ManualClock()
    with MetadataStore(":memory:") as metadata:
        files = FlatFileStore(MemoryDriver("memory://x"), metadata, "c", "b", clock)
        file = files.find_or_create("T", 0)
        with on_disk(tmp_path / "one", background=False) as store:
            put_all(store, 5)
            store.flush()
            source = LocalStoreSource(store)
            require_same_history(file, source)
            execute(Init(0), file, source, NoIndex())
            require_same_history(file, source)
            execute(Upload(0, 3, 1 << 20, repeat=False), file, source, NoIndex())
            assert file.commit_offset == 3
            require_same_history(file, source)
        with on_disk(tmp_path / "two", background=False) as store:
            put_all(store, 2)
            store.flush()
            with pytest.raises(StaleWriter, match="message 1 in the tier is not the local one"):
                require_same_history(file, LocalStoreSource(store))
            put_all(store, 3, first=70)
            store.flush()
            with pytest.raises(StaleWriter, match="message 2 in the tier is not the local one"):
                require_same_history(file, LocalStoreSource(store))
