"""ObjectStoreDriver keeps the contract over a real S3 server."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable

import pytest

from servers.seaweedfs import SECRET_KEY, SeaweedFS
from tier.driver.bundling import BundlingDriver
from tier.driver.conformance import DriverConformance, Place, fresh_segment, pattern
from tiermq.errors import BadTierUrl, CorruptSegment, TierCredentials
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.object_store import ObjectStoreDriver
from tiermq.tier.driver.part_log import part_path
from tiermq.tier.driver.tier_url import open_driver

_numbers = itertools.count()


@pytest.fixture
def place(seaweedfs: SeaweedFS) -> Place:
    """With the retries that every user has: the client has none, and a server under load loses a connection."""
    url = f"s3://history/conformance-{next(_numbers)}"
    return Place(lambda: open_driver(url, environment=seaweedfs.environment))


@pytest.fixture
def bare_place(seaweedfs: SeaweedFS) -> Place:
    """To count requests."""
    url = f"s3://history/conformance-{next(_numbers)}"
    return Place(lambda: open_driver(url, environment=seaweedfs.environment, retry=None))


class TestObjectsInS3(DriverConformance):
    pass


@pytest.mark.slow
class TestBundlesInS3(DriverConformance):
    """Every write goes into a bundle."""

    @pytest.fixture
    def place(self, seaweedfs: SeaweedFS) -> Place:
        url = f"s3://history/conformance-{next(_numbers)}"
        return Place(lambda: BundlingDriver(open_driver(url, environment=seaweedfs.environment)))


@pytest.mark.parametrize("ask", ["size", "write", "read", "seal", "delete", "list_segments", "put_object"])
def test_a_bucket_that_does_not_exist_is_named(seaweedfs: SeaweedFS, ask: str) -> None:
    driver = open_driver("s3://histori/prefix", environment=seaweedfs.guest_environment, retry=None)
    with pytest.raises((BadTierUrl, TierCredentials), match="s3://histori/prefix") as caught:
        called(driver, ask)
    # To write is refused before the bucket is looked for; everything else says that there is none.
    assert isinstance(caught.value, TierCredentials if ask == "put_object" else BadTierUrl)


@pytest.mark.parametrize("ask", ["size", "write", "read", "seal", "delete", "list_segments", "put_object"])
@pytest.mark.parametrize("wrong", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"])
def test_wrong_credentials_are_a_refusal_that_shows_no_secret(seaweedfs: SeaweedFS, wrong: str, ask: str) -> None:
    environment = {**seaweedfs.environment, wrong: "wrong-and-not-to-be-shown"}
    driver = open_driver("s3://history/prefix", environment=environment, retry=None)
    with pytest.raises(TierCredentials, match="InvalidAccessKeyId|SignatureDoesNotMatch|403 Forbidden") as caught:
        called(driver, ask)
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET_KEY not in shown.replace(repr(environment), "")
    assert "not-to-be-shown" not in str(caught.value)
    assert "Check the credentials in the environment" in str(caught.value)


def called(driver: TierDriver, ask: str) -> None:
    key = fresh_segment()
    calls: dict[str, Callable[[], object]] = {
        "size": lambda: driver.size(key),
        "write": lambda: driver.write(key, 0, [b"x"]),
        "read": lambda: driver.read(key, 0, 1),
        "seal": lambda: driver.seal(key),
        "delete": lambda: driver.delete(key),
        "list_segments": lambda: list(driver.list_segments()),
        "put_object": lambda: driver.put_object("a/b.tiermq.json", b"{}"),
    }
    calls[ask]()


def test_a_write_and_a_sealed_read_are_one_request_each(bare_place: Place) -> None:
    key, driver, stranger = fresh_segment(), bare_place.open(), bare_place.open()
    assert isinstance(driver, ObjectStoreDriver)
    assert isinstance(stranger, ObjectStoreDriver)
    driver.write(key, 0, [pattern(100)])
    before = sum(driver.requests.counts.values())
    driver.write(key, 100, [pattern(100, 1)])
    assert sum(driver.requests.counts.values()) - before == 1
    driver.seal(key)
    assert stranger.read(key, 50, 100) == pattern(100)[50:] + pattern(100, 1)[:50]
    assert stranger.requests.counts == {"get": 1}


def test_damage_done_behind_our_back_is_found(seaweedfs: SeaweedFS, place: Place) -> None:
    key, driver, stranger = fresh_segment(), place.open(), place.open()
    for start in range(0, 60, 20):
        driver.write(key, start, [pattern(20, start)])
    prefix = driver.url.removeprefix("s3://history/")
    seaweedfs.store("history").put(f"{prefix}/{part_path(key.path, 20)}", b"cut")
    with pytest.raises(CorruptSegment, match="expected 20 bytes at 0, found an object of 3 bytes"):
        driver.read(key, 0, 60)
    with pytest.raises(CorruptSegment, match="a hole: the next part is at 40"):
        stranger.size(key)
    [info] = stranger.list_segments()
    assert info.damage is not None
    assert info.size == 23
