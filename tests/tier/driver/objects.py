"""Object drivers over memory whose requests can be watched, made to fail, or answered with an old listing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from obstore.store import MemoryStore

from tiermq.errors import TierUnavailable
from tiermq.tier.driver.object_requests import ObjectRequests, ObjectStat
from tiermq.tier.driver.object_store import ObjectStoreDriver

URL = "memory://objects"


class TestRequests(ObjectRequests):
    """`die_at=n`: request n fails, before it is sent or (`landed`) after it has happened, and so do all later ones."""

    __test__ = False

    def __init__(self, store: MemoryStore, *, die_at: int | None = None, landed: bool = False) -> None:
        super().__init__(store, URL)
        self.sent = 0
        self._die_at = die_at
        self._landed = landed
        self.listed: Callable[[list[ObjectStat]], list[ObjectStat]] = lambda found: found

    def list(self, directory: str) -> list[ObjectStat]:
        return self.listed(super().list(directory))

    @contextmanager
    def _request(self, kind: str, action: str, path: str) -> Iterator[None]:
        self.sent += 1
        dying = self._die_at is not None and self.sent >= self._die_at
        if dying and (self.sent > (self._die_at or 0) or not self._landed):
            raise TierUnavailable(f"died before request {self.sent}")
        with super()._request(kind, action, path):
            yield
        if dying:
            raise TierUnavailable(f"died after request {self.sent}")


class FreezingRequests(ObjectRequests):
    """Of a process that stands still before its change number `at`, while `meanwhile` happens."""

    def __init__(self, store: MemoryStore, url: str, at: int, meanwhile: Callable[[], object]) -> None:
        super().__init__(store, url)
        self._at, self._meanwhile = at, meanwhile
        self.changes: list[str] = []

    @contextmanager
    def _request(self, kind: str, action: str, path: str) -> Iterator[None]:
        if kind in ("put", "delete", "copy", "upload"):
            self.changes.append(f"{kind} {path}")
            if len(self.changes) == self._at:
                self._meanwhile()
        with super()._request(kind, action, path):
            yield


def objects_driver(store: MemoryStore, *, die_at: int | None = None, landed: bool = False) -> ObjectStoreDriver:
    return ObjectStoreDriver(TestRequests(store, die_at=die_at, landed=landed), URL)


def paths_in(store: MemoryStore) -> list[str]:
    return sorted(meta["path"] for batch in store.list() for meta in batch)
