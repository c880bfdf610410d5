"""Chromium and its driver for tests: those of this machine, or Debian's packages, unpacked into the cache without root.

The packages go into `$TIERMQ_CACHE` or `~/.cache/tiermq`, once; apt checks their signatures. Where there is neither,
`Unavailable` says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("chromium", "chromium-driver")


class Unavailable(Exception):
    """The browser cannot be had on this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class Chromium:
    """The programs, and what their processes need in the environment."""

    program: str
    driver: str
    environment: dict[str, str]


def chromium() -> Chromium:
    """Both programs, fetched when they are not there yet. Raises Unavailable."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is not None and driver is not None:
        return Chromium(program, driver, dict(os.environ))
    cache = Path(os.environ.get("TIERMQ_CACHE") or Path.home() / ".cache" / "tiermq")
    home = cache / "chromium"
    if not home.is_dir():
        _fetch(cache, home)
    libraries = sorted({str(each.parent) for each in (home / "usr" / "lib").glob("*-linux-gnu*/**/*.so*")})
    path = os.pathsep.join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(os.pathsep)
    # The program itself: Debian's script before it looks for it below /usr.
    return Chromium(
        str(home / "usr" / "lib" / "chromium" / "chromium"),
        str(home / "usr" / "bin" / "chromedriver"),
        {**os.environ, "LD_LIBRARY_PATH": path},
    )


def _fetch(cache: Path, home: Path) -> None:
    """The packages and all of theirs that this machine has not."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unavailable("no Chromium or no chromedriver here, and no apt-get to fetch them")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        steps = _run(["apt-get", "install", "--simulate", "--no-install-recommends", *PACKAGES], scratch)
        names = [line.split()[1] for line in steps.splitlines() if line.startswith("Inst ")]
        # What is installed is not among them; but one of the two may be, without the other.
        _run(["apt-get", "download", *sorted({*names, *PACKAGES})], scratch)
        made = Path(scratch) / "made"
        for package in Path(scratch).glob("*.deb"):
            _run(["dpkg-deb", "--extract", str(package), str(made)], scratch)
        if not (made / "usr" / "bin" / "chromedriver").exists() or not (made / "usr/lib/chromium/chromium").exists():
            raise Unavailable(f"the packages {' and '.join(PACKAGES)} have not the programs of Debian's")
        if not home.is_dir():  # Another run may have been faster.
            made.rename(home)


def _run(command: list[str], directory: str) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Unavailable(f"no Chromium or no chromedriver here: {command[0]} could not fetch them: {said[-1:]}")
    return done.stdout
