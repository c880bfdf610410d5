"""Processes that work until they are killed, and say the number of whatever they acknowledged, a line each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def live_and_die(program: str, root: Path, first: int, acknowledgements: int) -> set[int]:
    """Let a child that counts from `first` on acknowledge so many, kill it, and say which."""
    reported: set[int] = set()
    with subprocess.Popen([sys.executable, program, str(root), str(first)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith(b"\n"):
                reported.add(int(line))
            if len(reported) == acknowledgements:
                process.kill()
    assert len(reported) >= acknowledgements, "it died by itself"
    return reported
