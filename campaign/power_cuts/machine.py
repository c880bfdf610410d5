"""Machine: a disk image that is mounted, and copies of it as a power cut would leave the disk.

What is in the page cache of the mounted file system and was not synced is not in its image, and so not in a copy. A
copy takes a while; it counts only if the file system wrote nothing to its image meanwhile (`/sys/block/loopN/stat`),
so that it is the disk of one moment. The load on the file system is stopped for that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IMAGE_BYTES = 192 << 20
TOOLS = ("mkfs.ext4", "mount", "umount", "losetup")
OPTIONS = ("", "noauto_da_alloc", "data=writeback,noauto_da_alloc", "data=journal", "commit=1", "nodelalloc")
"""How ext4 may be mounted. `noauto_da_alloc` takes away its guess that a renamed file is to be synced first."""
FSCK_REPAIRED = 1
_POLL_S = 0.002
_WRITES = (4, 6, 11, 13, 15)  # Of a block device's statistics: writes, discards, flushes.
_IN_FLIGHT = 8


def run(*command: object) -> str:
    """A tool's output. Raises RuntimeError with what it said."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


def missing_tools() -> str:
    """What it takes to mount images and is not here; "" when nothing lacks. Tries it with a small one."""
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0:
        lacking.append("root")
    if lacking:
        return f"mounting an image needs {', '.join(lacking)}"
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with Machine(Path(scratch), image_bytes=8 << 20).running():
                return ""
        except RuntimeError as error:
            return f"an image cannot be mounted here: {error}"


class Machine:
    """One disk. Used by one thread; `root` is where it is mounted."""

    def __init__(self, place: Path, *, options: str = "", image_bytes: int = IMAGE_BYTES) -> None:
        self.place = place
        self.options = options
        self.boots = 0
        self.image = place / "disk-0"
        self.root = place / "mounted"
        self.root.mkdir()
        self._device = ""
        with self.image.open("wb") as file:
            file.truncate(image_bytes)
        run("mkfs.ext4", "-q", "-F", self.image)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Mounted for so long, whatever image it is by then."""
        self._mount()
        try:
            yield
        finally:
            self._umount()

    def copy(self, to: Path) -> None:
        """What the disk holds at one moment of this call."""
        while True:
            before = self._statistics()
            if before[_IN_FLIGHT]:
                time.sleep(_POLL_S)
                continue
            run("cp", "--sparse=always", self.image, to)
            if _changes(self._statistics()) == _changes(before):
                return

    def boot_from(self, image: Path) -> None:
        """The power is back: go on with that image; the old one is gone. The file system must not be in use."""
        self._umount()
        self.image.unlink()
        self.boots += 1
        self.image = self.place / f"disk-{self.boots}"
        image.rename(self.image)
        self._mount()

    def cut_power(self) -> None:
        """Boot from what the disk holds at this moment. Its users must be stopped, and dead before the next call."""
        copied = self.place / "cut"
        self.copy(copied)
        self.boot_from(copied)

    @contextmanager
    def looked_into(self, image: Path) -> Iterator[Path]:
        """Another image, mounted beside; it is removed afterwards."""
        place = Path(tempfile.mkdtemp(dir=self.place))
        run("mount", "-o", ",".join(filter(None, ["loop", self.options])), image, place)
        try:
            yield place
        finally:
            run("umount", place)
            place.rmdir()
            image.unlink()

    def remount_broken(self) -> None:
        """The file system finds an error and goes read-only under its users."""
        run("mount", "-o", "remount,abort", self.root)

    def repaired(self) -> None:
        """Check the file system, and mount it again. It must not be in use."""
        self._umount()
        done = subprocess.run(["e2fsck", "-fy", str(self.image)], capture_output=True, text=True, check=False)
        if done.returncode > FSCK_REPAIRED:
            raise RuntimeError(f"e2fsck: {done.stdout[-500:]}")
        self._mount()

    def _mount(self) -> None:
        self._device = run("losetup", "--find", "--show", self.image)
        try:
            run("mount", *(["-o", self.options] if self.options else []), self._device, self.root)
        except RuntimeError:
            run("losetup", "--detach", self._device)
            raise

    def _umount(self) -> None:
        run("umount", self.root)
        run("losetup", "--detach", self._device)

    def _statistics(self) -> list[int]:
        return [int(word) for word in Path(f"/sys/block/{Path(self._device).name}/stat").read_text().split()]


def _changes(statistics: list[int]) -> list[int]:
    return [statistics[field] for field in _WRITES if field < len(statistics)]
