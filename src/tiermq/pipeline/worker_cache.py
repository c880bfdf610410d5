"""What a process keeps open from task to task: tiers and store directories.

Nothing is opened at import: the client of an object store that is used before a fork hangs in the child.
"""

from __future__ import annotations

from tiermq.store.readonly.store import ReadOnlyStore
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import open_driver

_drivers: dict[str, TierDriver] = {}
_stores: dict[str, ReadOnlyStore] = {}


def driver_of(url: str) -> TierDriver:
    """The tier, opened when first asked for."""
    found = _drivers.get(url)
    if found is None:
        found = _drivers[url] = open_driver(url)
    return found


def store_of(path: str) -> ReadOnlyStore:
    """The store directory as it is now."""
    found = _stores.get(path)
    if found is None:
        found = _stores[path] = ReadOnlyStore.open(path)
    else:
        found.refresh()
    return found
