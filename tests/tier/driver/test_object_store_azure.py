"""ObjectStoreDriver keeps the contract over Azure's blob storage, as its own emulator answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from servers.azurite import ACCOUNT_KEY, Azurite, Unavailable
from tier.driver.conformance import DriverConformance, Place, fresh_segment
from tiermq.errors import BadTierUrl, TierCredentials
from tiermq.tier.driver.tier_url import open_driver

pytestmark = pytest.mark.slow

_numbers = itertools.count()


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    try:
        server = Azurite(tmp_path_factory.mktemp("azurite"))
    except Unavailable as reason:
        pytest.skip(f"no Azure emulator here: {reason}")
    with server:
        server.create_container("history")
        yield server


@pytest.fixture
def place(azurite: Azurite) -> Place:
    url = f"az://history/conformance-{next(_numbers)}"
    return Place(lambda: open_driver(url, environment=azurite.environment))


class TestObjectsInAzure(DriverConformance):
    pass


def test_a_container_that_does_not_exist_is_named(azurite: Azurite) -> None:
    driver = open_driver("az://histori/prefix", environment=azurite.environment, retry=None)
    with pytest.raises(BadTierUrl, match="az://histori/prefix"):
        driver.write(fresh_segment(), 0, [b"x"])


def test_a_wrong_key_is_a_refusal_that_shows_no_secret(azurite: Azurite) -> None:
    environment = {**azurite.environment, "AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="}
    driver = open_driver("az://history/prefix", environment=environment, retry=None)
    with pytest.raises(TierCredentials, match="az://history/prefix") as caught:
        driver.size(fresh_segment())
    assert ACCOUNT_KEY not in str(caught.value)
    assert "d3Jvbmc=" not in str(caught.value)
