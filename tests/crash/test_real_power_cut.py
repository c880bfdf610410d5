"""A power cut on a real file system: the image of a mounted ext4 is copied, which leaves behind what was not synced."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.test_kill import Victim, new_seed

pytestmark = [pytest.mark.crash, pytest.mark.slow]

IMAGE_BYTES = 128 << 20
ROUNDS = 5
TOOLS = ("mkfs.ext4", "mount", "umount", "losetup")


def run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


class Machine:
    """A disk image, mounted."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.boots = 0
        self.image = place / "disk-0"
        with self.image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        run("mkfs.ext4", "-q", "-F", self.image)
        self.mount()

    def mount(self) -> None:
        self.root = self.place / f"mounted-{self.boots}"
        self.root.mkdir()
        run("mount", "-o", "loop", self.image, self.root)

    def cut_power(self) -> None:
        """Boot from what the disk holds at this moment, whatever the page cache still has."""
        self.boots += 1
        image = self.place / f"disk-{self.boots}"
        run("cp", "--sparse=always", self.image, image)
        old, self.image = self.image, image
        run("umount", self.root)
        old.unlink()
        self.mount()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root and the tools {', '.join(TOOLS)}; missing: {', '.join(missing) or 'root'}")
    try:
        machine = Machine(tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"an image cannot be mounted here: {error.stderr.decode().strip()}")
    yield machine
    run("umount", machine.root)


@pytest.mark.parametrize("pool", [False, True], ids=["mapped", "transient pool"])
def test_what_sync_flush_acknowledged_is_on_the_disk_of_a_machine_that_lost_its_power(
    machine: Machine, pool: bool
) -> None:
    settings = {"flush_disk_type": "SYNC_FLUSH", "transient_store_pool_enable": pool, "transient_store_pool_size": 2}
    victim = Victim(machine.root / "store", new_seed(), settings)
    for _ in range(ROUNDS):
        victim.kill_while_producing()
        machine.cut_power()
        victim.root = machine.root / "store"
        victim.check()


def test_async_flush_loses_a_tail_at_most(machine: Machine) -> None:
    victim = Victim(machine.root / "store", new_seed(), {"flush_disk_type": "ASYNC_FLUSH"})
    lost = 0
    for _ in range(ROUNDS):
        victim.kill_while_producing()
        machine.cut_power()
        victim.root = machine.root / "store"
        with victim.opened() as store:
            end = store.max_physical_offset
            before = len(victim.acknowledged)
            victim.acknowledged = {n: place for n, place in victim.acknowledged.items() if place[3] < end}
            lost += before - len(victim.acknowledged)
        victim.check()
    assert lost > 0, "the page cache was left behind, or this test proves nothing"
