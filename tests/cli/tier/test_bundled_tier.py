"""A broker with `tierBundleInterval` in its settings file, and every command over the tier that it leaves."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from click.testing import CliRunner

from cli.test_serve_command import FREE, SMALL_FILE, serving
from tiermq.cli.main import cli
from tiermq.tier.names import BUNDLES_DIRECTORY

TOPICS, QUEUES = 2, 2
SETTINGS = '\n[broker]\nbind_address = "127.0.0.1"\nbroker_name = "b1"\n[tier]\ntier_bundle_interval = 100\n'


def run(*words: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


def produce(ready: dict[str, str], round_number: int) -> None:
    for topic in range(TOPICS):
        for queue in range(QUEUES):
            body = f"{topic}-{queue}-{round_number}"
            run("produce", f"quiet-{topic}", body, "--queue", str(queue), "-n", ready["nameServer"])


def bodies(tier: str) -> set[str]:
    found = set()
    for topic in range(TOPICS):
        for queue in range(QUEUES):
            text = run("tier", "cat", tier, "--topic", f"quiet-{topic}", "--queue", str(queue), "--json")
            found |= {row["body"] for row in map(json.loads, text.splitlines())}
    return found


def test_the_tier_of_a_broker_with_bundles_is_read_by_every_command(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(SMALL_FILE + SETTINGS)
    directory = tmp_path / "tier"
    tier = f"file://{directory}?driver=object"
    for round_number in range(2):
        with serving(tmp_path / "store", "-c", config, *FREE, "--tier", tier) as (process, ready):
            produce(ready, round_number)
            process.send_signal(signal.SIGTERM)
            process.wait()
    bundles = list(directory.glob(f"*/b1/{BUNDLES_DIRECTORY}/*"))
    assert bundles
    assert not list(directory.glob("*/b1/quiet-*/*/*/*.parts/0*"))  # Queues have no parts of their own.

    expected = {f"{topic}-{queue}-{n}" for topic in range(TOPICS) for queue in range(QUEUES) for n in range(2)}
    assert bodies(tier) == expected
    run("tier", "verify", tier)
    run("tier", "stat", tier)
    assert "quiet-1" in run("tier", "ls", tier, "--topic", "quiet-1", "--segments")
    run("tier", "orphans", tier)
    rows = [json.loads(line) for line in run("dump", bundles[0].parent).splitlines()]
    assert {row["body"] for row in rows if row["kind"] == "record"} == expected
    assert {"bundle", "bundled_range"} <= {row["kind"] for row in rows}

    run("tier", "restore", tier, "--store", tmp_path / "restored")
    with serving(tmp_path / "restored", "-c", config, *FREE, "--tier", tier) as (_, ready):
        produce(ready, 2)
    assert len(bodies(tier)) == 3 * TOPICS * QUEUES
    run("tier", "verify", tier)

    bundles[0].unlink()
    assert BUNDLES_DIRECTORY in run("tier", "verify", tier, code=1)
