"""LocalStore, as Python programs have it: a message store in a directory that a RocketMQ 5.3 broker can open.

    with LocalStore.open("store") as store:
        store.put(Message("orders", b"two coffees", keys=["order-42"], tags="paid"))
        [message] = store.query("orders", "order-42")
        for message in store.read("orders", since="1h"):
            ...

The engine below is `tiermq.store.local_store`, which brokers use as it is.
"""

from __future__ import annotations

import os
from typing import Any, Self

from tiermq.clock import Clock
from tiermq.config import StoreConfig
from tiermq.embedded.locations import store_directory
from tiermq.embedded.message_store import MessageStore
from tiermq.store.local_store import LocalStore as LocalEngine


class LocalStore(MessageStore):
    """A message store in a directory. What is durable when: with `flush_disk_type="SYNC_FLUSH"` a put that returned
    survives a power cut; by default the death of the process, and a power cut half a second later.

    A small store stays small: its files have disk blocks for what is in them.
    """

    def __init__(self, engine: LocalEngine, clock: Clock | None = None) -> None:
        if not isinstance(engine, LocalEngine):
            raise TypeError(f"expected the engine of a store, found {engine!r}: use LocalStore.open(path)")
        super().__init__(engine, engine, clock)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        config: StoreConfig | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> Self:
        """Open the store in `path`, creating it if missing, and recover it after a crash.

        path: a directory as text or `Path`, relative or not, in which "~" is the user's home. settings: RocketMQ's
        names in snake_case (`flush_disk_type="SYNC_FLUSH"`, `file_reserved_time=24`), over those of `config`. Raises
        StoreLocked when another process has it, StoreDamaged when a file in it is foreign or of a wrong size,
        ReadOnlyStore when it cannot be written, and BadConfig for a bad setting, or what is no directory.
        """
        return cls(LocalEngine.open(store_directory(path), config=config, clock=clock, grows=True, **settings), clock)
