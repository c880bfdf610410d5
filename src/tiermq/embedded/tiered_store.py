"""TieredStore, as Python programs have it: a local store whose history continues in a tier.

    with TieredStore.open("store", tier="s3://bucket/prefix") as store:      # or tier="tier", a directory
        store.put(Message("orders", b"two coffees", keys=["order-42"]))
        store.flush_to_tier()

The engine below is `tiermq.tier.tiered_store`, which brokers use as it is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from tiermq.clock import Clock
from tiermq.config import StoreConfig
from tiermq.delivery.tiered_timers.timer_discovery import discover_timers
from tiermq.embedded.locations import Location, store_directory, tier_url
from tiermq.embedded.message_store import MessageStore
from tiermq.errors import BadConfig, TierError
from tiermq.tier.driver.tier_url import directory_of, open_driver
from tiermq.tier.queue.segments import TierScope, list_tier
from tiermq.tier.restore.restore_report import RestoreReport
from tiermq.tier.retention.retention import RetentionReport
from tiermq.tier.tier_config import TierConfig
from tiermq.tier.tiered_store import NotUploaded
from tiermq.tier.tiered_store import TieredStore as TieredEngine


class TieredStore(MessageStore):
    """A message store in a directory whose history continues in a bucket or another directory. Writes never wait for
    the tier; local files are deleted only once their copy in the tier is verified.
    """

    _engine: TieredEngine

    def __init__(self, engine: TieredEngine, clock: Clock | None = None) -> None:
        if not isinstance(engine, TieredEngine):
            raise TypeError(
                f"expected the engine of a tiered store, found {engine!r}: use TieredStore.open(path, tier=…)"
            )
        super().__init__(engine, engine.local, clock)
        self.restored: RestoreReport | None = engine.restored
        """What `restore=True` found; None without it."""
        engine.on_growth(lambda *_: None if self._made_arrivals is None else self._made_arrivals.note())

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        tier: Location | None = None,
        restore: bool = False,
        config: StoreConfig | None = None,
        tier_config: TierConfig | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> Self:
        """Open the store in `path` with its tier: a URL (`s3://bucket/prefix`, `gs://…`, `az://…`, `memory://name`), or
        a directory as text or `Path`, which may be relative.

        settings: RocketMQ's names in snake_case, of the local store and of the tier alike. restore=True rebuilds what
        the tier has into an empty directory first. A tier in a directory is outside of the store's. Raises what
        `LocalStore.open` raises, BadTierUrl, TierCredentials; a tier that is out of reach raises only with `restore`,
        and so does one without any history (TierError).
        """
        path = store_directory(path)
        url = None if tier is None else tier_url(tier)
        given = url or settings.get("tier_url") or (tier_config.url if tier_config is not None else None)
        _require_apart(path, given)
        if restore:
            _require_history(path, given)
        engine = TieredEngine.open(
            path, tier=url, restore=restore, config=config, tier_config=tier_config, clock=clock, grows=True, **settings
        )
        return cls(engine, clock)

    @property
    def tier_url(self) -> str:
        """Where the tier is."""
        return str(self._engine.tier.driver.url)

    @property
    def trouble(self) -> TierError | None:
        """The last error of the tier's back end; None when the last request succeeded."""
        return self._engine.trouble

    def flush_to_tier(self, timeout_s: float | None = None) -> bool:
        """Upload everything that was put before, and wait; False if that fails or takes longer (`status()` has why)."""
        return self._engine.flush_to_tier(timeout_s)

    def refresh_tier(self) -> bool:
        """Load what a job has copied since the last refresh; whether there was anything."""
        return self._engine.refresh_tier()

    def expire_now(self) -> RetentionReport:
        """Delete from the tier what is too old or too much. Raises StaleWriter if another process owns it."""
        return self._engine.expire_now()

    def set_retention(self, topic: str, hours: int = -1, max_bytes: int = -1) -> None:
        """How long and how much of a topic the tier keeps; -1 for the setting of all topics."""
        self._engine.set_retention(topic, hours, max_bytes)

    def reindex(self) -> int:
        """Index again, by all their keys, the messages whose index RocketMQ wrote; how many queues they are in."""
        return self._engine.reindex()

    def close(self) -> NotUploaded:
        """Upload what the tier lacks, for up to `tier_close_timeout`, and close; what is left to upload."""
        left = super().close()
        assert isinstance(left, NotUploaded)
        return left

    def _shown(self) -> str:
        return f"{super()._shown()}, tier={self.tier_url!r}"


def _require_apart(path: Path, url: str | None) -> None:
    """Check that neither of the store's directory and the tier's is in the other one. Raises BadConfig, BadTierUrl."""
    directory = directory_of(url) if url else None
    if directory is None:
        return
    of_store, of_tier = path.resolve(), directory.resolve()
    if of_store.is_relative_to(of_tier) or of_tier.is_relative_to(of_store):
        raise BadConfig(
            f"expected a tier outside of the store's directory {of_store}, and the store outside of the tier, found "
            f"the tier in {of_tier}: give it a directory of its own, such as {of_store}-tier"
        )


def _require_history(path: str | os.PathLike[str], url: str | None) -> None:
    """Check that a tier has anything to restore, unless the store knows it already. Raises TierError; makes no file.

    The engine does not check it: a broker that takes over restores by itself, also from a tier without its history.
    """
    if url is None or TierConfig(store_path_root_dir=os.fspath(path)).metadata_path.is_file():
        return
    driver = open_driver(url, reads=True)
    try:
        if next(iter(driver.list_segments()), None) is not None:
            return
        if not list_tier(driver, TierScope()).brokers and not discover_timers(driver, TierScope()):
            raise TierError(
                f"{driver.url}: expected history to restore, found none; nothing was restored. Check the address, or "
                "begin a new history there without restore=True"
            )
    finally:
        driver.close()
