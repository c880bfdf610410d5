"""ObjectStoreDriver keeps the contract over a real S3 server."""

from __future__ import annotations

import itertools

import pytest

from servers.seaweedfs import SeaweedFS
from tier.driver.conformance import DriverConformance, Place
from tiermq.tier.driver.tier_url import open_driver

_numbers = itertools.count()


@pytest.fixture
def place(seaweedfs: SeaweedFS) -> Place:
    url = f"s3://history/conformance-{next(_numbers)}"
    return Place(lambda: open_driver(url, environment=seaweedfs.environment, retry=None))


class TestObjectsInS3(DriverConformance):
    pass
