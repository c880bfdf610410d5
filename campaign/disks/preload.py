"""Faults: system calls of a process that fail, chosen while it runs. Needs a C compiler and LD_PRELOAD."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from enum import IntFlag
from pathlib import Path

SOURCE = Path(__file__).with_name("preload.c")
CONTROL = struct.Struct(
    "="
    "i"  # calls     which fail
    "i"  # error     errno of those that do
    "i"  # every     one of so many
    "i"  # happened  how many did
    "256s"  # prefix  of the paths that are meant
)


class Calls(IntFlag):
    SYNC = 1
    WRITE = 2
    SHORT = 4
    """Writes that write a half, and say so."""
    RESERVE = 8


def missing_compiler() -> str:
    return "" if shutil.which("cc") else "faults of system calls need a C compiler (cc)"


class Faults:
    """The faults of the processes that are started with `environment`. Used by one thread."""

    def __init__(self, scratch: Path, prefix: Path) -> None:
        """Raises RuntimeError when it cannot be compiled."""
        library, control = scratch / "faults.so", scratch / "faults.control"
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(f"cc: {made.stderr[-1_000:]}")
        control.write_bytes(bytes(CONTROL.size))
        self._prefix = str(prefix).encode()
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), CONTROL.size)
        self.environment = {"LD_PRELOAD": str(library), "TIERMQ_FAULTS": str(control)}
        self.happened_before = 0

    @property
    def happened(self) -> int:
        return self.happened_before + int(CONTROL.unpack(self._map[:])[3])

    def fail(self, calls: Calls, error: int, every: int = 1) -> None:
        """From now on, until `heal`."""
        self.happened_before = self.happened
        self._map[:] = CONTROL.pack(calls, error, every, 0, self._prefix)

    def heal(self) -> None:
        self.fail(Calls(0), 0)
