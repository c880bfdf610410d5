"""What processors share."""

from __future__ import annotations

from pathlib import Path

from broker.brokers import running
from tiermq.broker.parts import config_directory


def test_the_local_half_is_the_store_itself_or_lies_under_the_tier(tmp_path: Path) -> None:
    with running(tmp_path / "local") as broker:
        assert broker.parts.local is broker.store
    with running(tmp_path / "tiered", tier=(tmp_path / "tier").as_uri()) as broker:
        assert broker.parts.local is not broker.store
        assert broker.parts.local.config is broker.store.config


def test_rocketmq_s_json_files_lie_in_the_config_directory_of_the_store(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        directory = Path(config_directory(broker.store.config.root_path))
        assert (directory / "topics.json").exists()
        assert not broker.parts.holds_locks("anybody")
