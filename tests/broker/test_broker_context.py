"""What processors share."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from broker.brokers import running
from tiermq.broker.broker_context import config_directory


def test_the_local_half_is_the_store_itself_or_lies_under_the_tier(tmp_path: Path) -> None:
    with running(tmp_path / "local") as broker:
        assert broker.parts.local is broker.store
        assert broker.parts.tiered is None
    with running(tmp_path / "tiered", tier=(tmp_path / "tier").as_uri()) as broker:
        tiered, local = broker.parts.tiered, broker.parts.local
        assert tiered is broker.store
        assert tiered is not None
        assert tiered.local is local
        assert broker.parts.local.config is broker.store.config


def test_rocketmq_s_json_files_lie_in_the_config_directory_of_the_store(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        directory = Path(config_directory(broker.store.config.root_path))
        assert (directory / "topics.json").exists()


def test_a_broker_without_a_tier_loads_nothing_of_it_but_its_settings(tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "from tiermq.cli import serve\n"
        "from tiermq.broker.broker import Broker\n"
        "from tiermq.broker.broker_config import BrokerConfig\n"
        "with Broker.open(sys.argv[1], config=BrokerConfig(bind_address='127.0.0.1', listen_port=0)) as broker:\n"
        "    rooms = ('tiermq.tier.', 'tiermq.delivery.tiered_timers.', 'obstore', 'sqlite3', 'pyarrow', 'pyspark')\n"
        "    print(json.dumps(sorted(name for name in sys.modules if name.startswith(rooms))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    values = ["block_sums", "names", "tier_config"]
    packages = ["metadata", "metadata.metadata_values", "retention", "retention.retention_plan"]
    assert json.loads(done.stdout) == sorted(f"tiermq.tier.{name}" for name in values + packages)
