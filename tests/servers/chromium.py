"""Chromium and its driver for tests: those of this machine, or Debian's packages (`servers.debian`)."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from servers.debian import Unavailable, unpacked


@dataclass(frozen=True, slots=True)
class Chromium:
    """The programs, and what their processes need in the environment."""

    program: str
    driver: str
    environment: dict[str, str]


def chromium() -> Chromium:
    """Both programs, fetched when they are not there yet. Raises Unavailable."""
    here = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    its_driver = shutil.which("chromedriver")
    if here is not None and its_driver is not None:
        return Chromium(here, its_driver, dict(os.environ))
    home = unpacked("chromium", "chromium-driver")
    # The program itself: Debian's script before it looks for it below /usr.
    program, driver = home / "usr" / "lib" / "chromium" / "chromium", home / "usr" / "bin" / "chromedriver"
    if not program.exists() or not driver.exists():
        raise Unavailable("the packages chromium and chromium-driver have not the programs of Debian's")
    libraries = sorted({str(each.parent) for each in (home / "usr" / "lib").glob("*-linux-gnu*/**/*.so*")})
    path = os.pathsep.join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(os.pathsep)
    return Chromium(str(program), str(driver), {**os.environ, "LD_LIBRARY_PATH": path})
