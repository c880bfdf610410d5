"""`tiermq tier restore | import | export-metadata`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tier.verify_world import sound_world
from tiermq.cli.main import cli
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.restore.rocketmq_json import decode_rocketmq_json
from tiermq.tier.restore.state_restore import NEVER_RESTORED, WITHOUT

GOLDEN = Path(__file__).parents[2] / "golden" / "rocketmq-5.3.3-tier"
URL = (GOLDEN / "tier").as_uri()
FILE = str(GOLDEN / "tieredStoreMetadata.json")


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["tier", *words])


@pytest.fixture
def our_url(tmp_path: Path) -> str:
    world = sound_world(tmp_path)
    driver = PosixDriver(tmp_path / "tier")
    for info in world.driver.list_segments():
        driver.write(info.key, 0, [world.driver.read(info.key, 0, info.size)])
    for name in world.driver.list_objects():
        driver.put_object(name, world.driver.get_object(name).data)
    world.close()
    return driver.url


def test_restore_rebuilds_what_a_broker_knew(tmp_path: Path, our_url: str) -> None:
    result = run("restore", our_url, "--store", str(tmp_path / "store"))
    assert result.exit_code == 0, result.output
    assert "35 messages in 2 queues of 2 topics" in result.output
    with MetadataStore(tmp_path / "store" / "config" / "tieredStoreMetadata.db") as found:
        assert [(q.key.topic, q.min_offset, q.max_offset) for q in found.queues()] == [
            ("orders", 0, 30),
            ("payments", 0, 5),
        ]
    assert run("verify", our_url, "--store", str(tmp_path / "store")).exit_code == 0


def test_restore_says_what_is_odd_with_exit_code_1(tmp_path: Path) -> None:
    result = run("restore", URL, "--store", str(tmp_path / "store"), "--json")
    assert result.exit_code == 1
    found = json.loads(result.output)
    assert (found["messages"], found["clean"]) == (116, False)
    assert "missing_manifest" in {remark["kind"] for remark in found["remarks"]}


def test_restore_into_a_store_that_knows_already_changes_nothing_and_exits_with_2(tmp_path: Path, our_url: str) -> None:
    words = ("restore", our_url, "--store", str(tmp_path / "store"))
    assert run(*words).exit_code == 0
    again = run(*words)
    assert again.exit_code == 2
    assert "expected empty metadata" in again.output


def test_restore_of_nothing_exits_with_2(tmp_path: Path) -> None:
    result = run("restore", (tmp_path / "empty").as_uri(), "--store", str(tmp_path / "store"))
    assert result.exit_code == 2
    assert "nothing was restored" in result.output
    assert not (tmp_path / "store").exists()
    (tmp_path / "given" / "config").mkdir(parents=True)
    (tmp_path / "given" / "config" / "topics.json").touch()
    assert run("restore", (tmp_path / "empty").as_uri(), "--store", str(tmp_path / "given")).exit_code == 2
    assert [path.name for path in (tmp_path / "given" / "config").iterdir()] == ["topics.json"]


def test_restore_of_two_brokers_wants_to_know_which(tmp_path: Path, our_url: str) -> None:
    root = tmp_path / "tier" / "212d6b50_DefaultCluster"
    shutil.copytree(root / "broker-a", root / "broker-b")
    result = run("restore", our_url, "--store", str(tmp_path / "store"))
    assert result.exit_code == 2
    assert "broker-a of DefaultCluster, broker-b" in result.output
    words = ("--cluster", "DefaultCluster", "--broker", "broker-a")
    assert run("restore", our_url, "--store", str(tmp_path / "store"), *words).exit_code == 0


def test_import_takes_a_tier_of_rocketmq_over(tmp_path: Path) -> None:
    result = run("import", URL, "--metadata", FILE, "--store", str(tmp_path / "store"))
    assert result.exit_code == 0, result.output
    assert "116 messages in 5 queues of 3 topics" in result.output
    assert "RocketMQ's, which drops keys" in result.output
    reported = json.loads(run("import", URL, "--metadata", FILE, "--store", str(tmp_path / "again"), "--json").output)
    assert reported["indexFiles"] > 0
    assert not reported["indexComplete"]
    found = json.loads(run("verify", URL, "--store", str(tmp_path / "store"), "--json").output)
    assert (found["clean"], found["counts"]["staleItems"]) == (True, 0)  # The ids in the index are understood.


def test_import_says_what_disagrees_with_exit_code_1(tmp_path: Path) -> None:
    tier = Path(shutil.copytree(GOLDEN / "tier", tmp_path / "tier"))
    shutil.rmtree(tier / "212d6b50_DefaultCluster" / "broker-a" / "later")
    words = ("import", tier.as_uri(), "--metadata", FILE, "--store")
    result = run(*words, str(tmp_path / "store"))
    assert result.exit_code == 1
    assert "not in the tier" in result.output
    found = json.loads(run(*words, str(tmp_path / "store2"), "--json").output)
    assert len(found["notInTier"]) == 2


def test_import_of_a_file_that_is_none_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text("{")
    result = run("import", URL, "--metadata", str(tmp_path / "file.json"), "--store", str(tmp_path / "store"))
    assert result.exit_code == 2


def test_export_writes_what_rocketmq_reads(tmp_path: Path) -> None:
    store, output = str(tmp_path / "store"), tmp_path / "out.json"
    assert run("import", URL, "--metadata", FILE, "--store", store).exit_code == 0
    assert run("export-metadata", URL, "--store", store, "--output", str(output)).exit_code == 0
    ours = decode_rocketmq_json(output.read_bytes(), "DefaultCluster")
    reported = decode_rocketmq_json(Path(FILE).read_bytes(), "DefaultCluster")
    assert {topic.name: topic.id for topic in ours.topics} == {topic.name: topic.id for topic in reported.topics}
    assert {s.key: s.size for s in ours.segments if s.size} == {s.key: s.size for s in reported.segments if s.size}


def test_export_from_the_bucket_alone_prints_it(our_url: str) -> None:
    result = run("export-metadata", our_url)
    assert result.exit_code == 0
    found = decode_rocketmq_json(result.output.encode(), "DefaultCluster")
    assert {topic.name for topic in found.topics} == {"orders", "payments"}


def test_export_as_json_says_what_was_written(tmp_path: Path, our_url: str) -> None:
    output = tmp_path / "out.json"
    found = json.loads(run("export-metadata", our_url, "--output", str(output), "--json").output)
    assert found["size"] == output.stat().st_size
    assert run("export-metadata", our_url, "--json").exit_code == 2


def test_a_restore_says_what_no_tier_has(tmp_path: Path, our_url: str) -> None:
    reported = run("restore", our_url, "--store", str(tmp_path / "one")).output
    assert "not in the tier, so not restored: numbers of queues, permissions and attributes of topics; " in reported
    row = json.loads(run("restore", our_url, "--store", str(tmp_path / "two"), "--json").output)
    assert row["notRestored"] == [*WITHOUT.values(), *NEVER_RESTORED]
    assert row["tables"] == []


def test_the_migration_page_takes_rocketmq_s_tier_over_and_hands_it_back(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "migration.md").read_text(encoding="utf-8")
    section = page.partition("## RocketMQ's own tier\n")[2].partition("\n## ")[0]
    commands = re.findall(r"^\$ (.*)$", section, re.MULTILINE)
    assert [words.split()[:3] for words in commands if words.startswith("tiermq")] == [
        ["tiermq", "tier", command] for command in ("import", "verify", "verify", "export-metadata")
    ]
    shutil.copytree(GOLDEN / "tier", tmp_path / "tier")
    (tmp_path / "store" / "config").mkdir(parents=True)
    handed = tmp_path / "store" / "config" / "tieredStoreMetadata.json"
    shutil.copy(FILE, handed)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "OLD_TIER": str(tmp_path / "tier"),
        "STORE": str(tmp_path / "store"),
    }
    script = "\n".join(["set -eo pipefail", *commands])
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = (decode_rocketmq_json(Path(each).read_bytes(), "DefaultCluster") for each in (FILE, handed))
    assert handed.read_bytes() == (tmp_path / "handed-back.json").read_bytes() != Path(FILE).read_bytes()
    assert {s.key: s.size for s in after.segments if s.size} == {s.key: s.size for s in before.segments if s.size}
