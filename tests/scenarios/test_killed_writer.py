"""A broker is killed while it uploads, again and again; whatever it had promised is there, once, at its offset."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scenarios.killed_writer import SIZES, Promised, check, run_and_kill
from tiermq.tier.tiered_store import TieredStore

pytestmark = pytest.mark.crash


def test_a_broker_that_is_killed_while_it_uploads_loses_and_doubles_nothing(tmp_path: Path) -> None:
    promised = Promised()
    url = (tmp_path / "tier").as_uri()
    for rounds in (1, 3, 2):
        run_and_kill(tmp_path / "store", url, promised, rounds)
        with TieredStore.open(tmp_path / "store", tier=url, broker_name="broker-a", **SIZES) as store:
            check(store, promised)
            assert store.flush_to_tier(60), store.status()
    shutil.rmtree(tmp_path / "store")
    with TieredStore.open(tmp_path / "store", tier=url, broker_name="broker-a", restore=True, **SIZES) as store:
        check(store, promised)


def test_a_disk_that_is_lost_in_the_middle_of_an_upload_is_restored_up_to_what_was_promised_of_the_tier(
    tmp_path: Path,
) -> None:
    promised = Promised()
    url = (tmp_path / "tier").as_uri()
    run_and_kill(tmp_path / "store", url, promised, 3)
    shutil.rmtree(tmp_path / "store")
    with TieredStore.open(tmp_path / "store", tier=url, broker_name="broker-a", restore=True, **SIZES) as store:
        check(store, promised, tiered_only=True)


@pytest.mark.slow
def test_twenty_kills_in_a_row(tmp_path: Path) -> None:
    promised = Promised()
    url = (tmp_path / "tier").as_uri()
    for number in range(20):
        run_and_kill(tmp_path / "store", url, promised, 1 + number % 4)
    with TieredStore.open(tmp_path / "store", tier=url, broker_name="broker-a", **SIZES) as store:
        check(store, promised)
        assert store.flush_to_tier(60), store.status()
    shutil.rmtree(tmp_path / "store")
    with TieredStore.open(tmp_path / "store", tier=url, broker_name="broker-a", restore=True, **SIZES) as store:
        check(store, promised)
