"""ObjectStoreDriver keeps the contract over memory and over a directory."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tier.driver.bundling import BundlingDriver
from tier.driver.conformance import DriverConformance, Place
from tiermq.tier.driver.tier_url import open_driver

_numbers = itertools.count()


class TestObjectsInMemory(DriverConformance):
    @pytest.fixture
    def place(self) -> Place:
        url = f"memory://conformance-{next(_numbers)}?driver=object"
        return Place(lambda: open_driver(url, retry=None))


class TestObjectsInADirectory(DriverConformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        url = tmp_path.as_uri() + "?driver=object"
        return Place(lambda: open_driver(url, retry=None))


class TestBundles(DriverConformance):
    """Every write goes into a bundle."""

    @pytest.fixture
    def place(self) -> Place:
        url = f"memory://conformance-{next(_numbers)}?driver=object"
        return Place(lambda: BundlingDriver(open_driver(url, retry=None)))
