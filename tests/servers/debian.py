"""Programs of Debian's packages for tests, unpacked into the cache without root; apt checks their signatures.

The packages go into `$TIERMQ_CACHE` or `~/.cache/tiermq`, once, with those of their libraries that this machine lacks.
Where they cannot be had, `Unavailable` says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path


class Unavailable(Exception):
    """The programs cannot be had on this machine; the text says why."""


def unpacked(*packages: str) -> Path:
    """The directory that has the packages' `usr`. Raises Unavailable."""
    cache = Path(os.environ.get("TIERMQ_CACHE") or Path.home() / ".cache" / "tiermq")
    home = cache / f"debian-{packages[0]}"
    if not home.is_dir():
        _fetch(cache, home, packages)
    return home


def _fetch(cache: Path, home: Path, packages: tuple[str, ...]) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unavailable(f"no {packages[0]} here, and no apt-get to fetch it")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        steps = _run(["apt-get", "install", "--simulate", "--no-install-recommends", *packages], scratch)
        names = [line.split()[1] for line in steps.splitlines() if line.startswith("Inst ")]
        # What is installed is not among them, but some of the packages may be, without the others.
        _run(["apt-get", "download", *sorted({*names, *packages})], scratch)
        made = Path(scratch) / "made"
        for package in Path(scratch).glob("*.deb"):
            _run(["dpkg-deb", "--extract", str(package), str(made)], scratch)
        if not home.is_dir():  # Another run may have been faster.
            made.rename(home)


def _run(command: list[str], directory: str) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Unavailable(f"{command[0]} could not fetch {command[-1]}: {' '.join(said[-1:])}")
    return done.stdout
