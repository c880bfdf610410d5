"""Commands and jobs do not believe damaged metadata of a broker, and do not seal them as the truth."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scenarios.broker_world import SETTINGS
from tiermq import Message
from tiermq.cli.main import cli
from tiermq.errors import StoreDamaged
from tiermq.tier.metadata.database import put_away
from tiermq.tier.tier_identity import open_known_metadata, open_new_metadata, require_sound_metadata
from tiermq.tier.tiered_store import TieredStore

COUNT = 40
COMMANDS = [
    "tier verify TIER --store STORE",
    "tier export-metadata TIER --store STORE",
    "tier repair TIER --store STORE",
    "tier restore TIER --store STORE",
    "pipeline offload --tier TIER --store STORE --master here --once",
    "pipeline offload --tier TIER --store STORE --master here --dry-run",
    "pipeline offload --tier TIER --store STORE --master here --once --forget-tier",
    "pipeline verify TIER --store STORE --master here",
    "pipeline expire TIER --store STORE --keep 1d --master here",
    "pipeline compact TIER --store STORE --master here",
    "pipeline reindex TIER --store STORE --master here",
]


def tiered(path: Path) -> Path:
    settings = {**SETTINGS, "tier_url": (path / "tier").as_uri(), "broker_name": "broker-a"}
    with TieredStore.open(path / "store", background=False, **settings) as store:
        for number in range(COUNT):
            assert store.put(Message("orders", b"body %d" % number, keys=f"k{number}")).ok
        assert store.flush_to_tier()
    return path / "store" / "config" / "tieredStoreMetadata.db"


def flip(path: Path, at: int) -> None:
    """As a disk does that goes bad: the times of the file stay."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def run(command: str, path: Path) -> Result:
    words = {"TIER": (path / "tier").as_uri(), "STORE": str(path / "store")}
    return CliRunner().invoke(cli, [words.get(word, word) for word in command.split()])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_reports_that_metadata_are_damaged_and_leaves_them_and_the_tier_alone(
    command: str, tmp_path: Path
) -> None:
    metadata = tiered(tmp_path)
    flip(metadata, len(metadata.read_bytes()) // 2)
    before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file() and each.parent != tmp_path}
    result = run(command, tmp_path)
    assert result.exit_code in (1, 2), result.output
    assert isinstance(result.exception, SystemExit)
    assert "its bytes changed after it was closed" in result.output
    assert "tiermq tier restore" in result.output
    assert all(each.read_bytes() == data for each, data in before.items())
    assert require_refused(tmp_path / "store")  # It was not sealed as the truth.


def require_refused(store: Path) -> bool:
    with pytest.raises(StoreDamaged):
        require_sound_metadata(store)
    return True


def test_the_way_that_the_error_shows_leads_out(tmp_path: Path) -> None:
    metadata = tiered(tmp_path)
    flip(metadata, 5_000)
    metadata.rename(metadata.with_name("moved away"))
    require_refused(tmp_path / "store")  # It is missed: the key index of the tier is there.
    offload = run(COMMANDS[4], tmp_path)
    assert (offload.exit_code, "it is missing" in offload.output) == (1, True)
    restored = run("tier restore TIER --store STORE", tmp_path)
    assert restored.exit_code == 0, restored.output
    assert run("tier verify TIER --store STORE", tmp_path).exit_code == 0


def test_metadata_that_were_put_away_and_not_restored_yet_are_not_taken_for_a_fresh_store(tmp_path: Path) -> None:
    put_away(tiered(tmp_path))
    open_new_metadata(tmp_path / "store").close()  # And the broker died in the middle of its restore.
    with pytest.raises(StoreDamaged, match="has not been read from the tier again yet"):
        open_known_metadata(tmp_path / "store")
    restored = run("tier restore TIER --store STORE", tmp_path)
    assert restored.exit_code == 0, restored.output


def test_sound_metadata_are_opened_beside_a_broker_that_writes(tmp_path: Path) -> None:
    tiered(tmp_path)
    settings = {**SETTINGS, "tier_url": (tmp_path / "tier").as_uri(), "broker_name": "broker-a"}
    with TieredStore.open(tmp_path / "store", background=False, **settings) as store:
        for number in range(COUNT):
            assert store.put(Message("orders", b"more %d" % number)).ok
        assert store.flush_to_tier()
        with open_known_metadata(tmp_path / "store") as known:
            assert [queue.max_offset for queue in known.queues() if queue.key.topic == "orders"] == [2 * COUNT]


def test_a_directory_that_knows_no_tier_is_sound_and_yet_has_nothing_to_open(tmp_path: Path) -> None:
    assert not require_sound_metadata(tmp_path).exists()
    with pytest.raises(StoreDamaged, match="no such file"):
        open_known_metadata(tmp_path)
    assert not list(tmp_path.iterdir())
