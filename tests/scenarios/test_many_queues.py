"""Very many queues, each with little in it: nothing is looked at more often than needed, none is forgotten."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenarios.broker_world import BrokerWorld
from tiermq import Message

DESCRIPTORS = 1024


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: thousands of new files, each synced, say nothing here but cost minutes."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as path:
        yield Path(path)


def _live(path: Path, queue_count: int) -> None:
    world = BrokerWorld(path, mapped_file_size_commit_log=1 << 24, mapped_file_size_consume_queue=20 * 10,
                        tier_close_timeout=60_000)  # fmt: skip
    names = [(f"topic-{number % 10}", number // 10) for number in range(queue_count)]
    world.open()
    for life in range(2):
        for topic, queue_id in names:
            assert world.store.put(Message(topic, b"%d %d" % (queue_id, life), queue_id, keys=[f"k{queue_id}"])).ok
        assert world.store.flush_to_tier(), world.store.status()
        assert len(world.store.tier.files) == queue_count
        assert world.store.tier.engine.proof.lag().bytes == 0
        if life == 0:
            world.close()
            world.open()
    world.close()
    world.erase_disk()
    world.open(restore=True)
    for topic, queue_id in names[:: queue_count // 20]:
        page = world.store.get(topic, queue_id, 0)
        assert [m.body for m in page.messages] == [b"%d 0" % queue_id, b"%d 1" % queue_id]
        assert world.store.put(Message(topic, b"next", queue_id)).queue_offset == 2
    assert len(world.store.query("topic-3", f"k{queue_count // 20}").messages) == 2
    world.bury()


def test_a_thousand_queues(quick_path: Path) -> None:
    _live(quick_path, 1_000)


@pytest.mark.slow
def test_ten_thousand_queues_within_a_small_limit_of_descriptors(quick_path: Path) -> None:
    """In a process of its own, because a store takes every descriptor that the hard limit allows."""
    done = subprocess.run(
        ["prlimit", f"--nofile={DESCRIPTORS}", sys.executable, __file__, str(quick_path), "10000"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-10_000:]
    assert int(done.stdout) == DESCRIPTORS


if __name__ == "__main__":
    _live(Path(sys.argv[1]), int(sys.argv[2]))
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
