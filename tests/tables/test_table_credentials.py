"""Tables in object stores take credentials from the environment, and from nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.asked import Asked
from small_store import SIZES
from tiermq import Message
from tiermq.errors import TierCredentials
from tiermq.store.local_store import LocalStore
from tiermq.tables.commit_journal import CommitJournal
from tiermq.tables.data_place import NO_METADATA, DataPlace
from tiermq.tables.table_delta import storage_options

KEYS = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with LocalStore.open(tmp_path / "store", background=False, **SIZES) as opened:
        opened.put(Message("orders", b"{}"))
        opened.dispatch_now()
    return tmp_path / "store"


def tables(home: Path, scheme: str) -> Iterator[list[str]]:
    """Words of `pipeline export`."""
    yield ["--to", f"parquet:{scheme}://lake/t"]
    yield ["--to", f"delta:{scheme}://lake/t"]
    yield ["--to", "iceberg:lake.t", "--catalog", f"sqlite:///{home}/c.db", "--warehouse", f"{scheme}://lake/w"]


def export(store: Path, words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """In a process of its own: clients of object stores read some variables once."""
    command = [sys.executable, "-m", "tiermq.cli", "pipeline", "export", "--store", str(store), "--master", "here"]
    return subprocess.run(
        [*command, *words], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("scheme", "named"), [("s3", "AWS_SECRET_ACCESS_KEY"), ("gs", "GOOGLE_APPLICATION")])
@pytest.mark.parametrize("kind", [0, 1, 2], ids=["parquet", "delta", "iceberg"])
def test_an_export_without_credentials_is_refused_and_nothing_is_asked_for_them(
    store: Path, tmp_path: Path, asked: Asked, scheme: str, named: str, kind: int
) -> None:
    done = export(store, list(tables(tmp_path, scheme))[kind], {"AWS_ENDPOINT_URL": asked.address})
    assert done.returncode == 1
    assert "expected credentials in the environment, found none. Set " in done.stderr
    assert named in done.stderr
    assert "identity=instance" not in done.stderr, "a table cannot be given so"
    assert asked.requests == []


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["parquet", "delta", "iceberg"])
def test_an_export_with_credentials_asks_the_endpoint_and_no_metadata_address(
    store: Path, tmp_path: Path, asked: Asked, kind: int
) -> None:
    """Not for a region either, which no variable names here."""
    words = list(tables(tmp_path, "s3"))[kind]
    done = export(store, words, {**KEYS, "AWS_ENDPOINT_URL": asked.address})
    assert done.returncode == 1
    assert any("/lake" in each for each in asked.requests), done.stderr
    assert not [each for each in asked.requests if "/latest/" in each]


def test_an_iceberg_table_whose_catalogue_leads_into_a_bucket_is_not_read_without_credentials(
    tmp_path: Path, asked: Asked
) -> None:
    from tiermq.tables.table_iceberg import CheckedFiles

    for url in ("s3://lake/t/metadata/1.json", "s3a://lake/t/metadata/1.json", "gs://lake/t/metadata/1.json"):
        with pytest.raises(TierCredentials, match="expected credentials"):
            CheckedFiles().new_input(url).exists()
    (tmp_path / "1.json").write_text("{}")
    assert CheckedFiles().new_input(f"file://{tmp_path}/1.json").exists()
    assert asked.requests == []


@pytest.mark.parametrize("url", ["s3://lake/t", "gs://lake/t"])
def test_a_task_without_the_driver_s_credentials_is_refused(asked: Asked, url: str) -> None:
    place = DataPlace.of(url)
    with pytest.raises(TierCredentials), place.create("part-1.parquet"):
        pass
    for use in (place.files, lambda: place.open("x"), lambda: place.remove("x"), lambda: CommitJournal(place)):
        with pytest.raises(TierCredentials):
            use()
    assert asked.requests == []


def test_a_place_on_a_disk_needs_no_credentials_and_changes_no_variable(asked: Asked, tmp_path: Path) -> None:
    assert DataPlace.of(str(tmp_path)).files() == []
    assert NO_METADATA not in os.environ
    assert storage_options() == {}
    assert asked.requests == []


def test_an_operator_s_own_choice_about_the_metadata_address_stays(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NO_METADATA, "false")
    with pytest.raises(TierCredentials):
        DataPlace.of("s3://lake/t").require_credentials()
    assert os.environ[NO_METADATA] == "false"
