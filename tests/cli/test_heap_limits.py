"""A serving process has two heaps, however many threads allocate."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import ctypes, sys, threading
from tiermq.cli.heap_limits import limit_heaps
limited = limit_heaps() if sys.argv[1] == "limit" else None
together = threading.Barrier(12)
held = []
def allocate():
    together.wait()
    held.extend(bytearray(100_000) for _ in range(20))
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = libc.fopen(sys.argv[2].encode(), b"w")
libc.malloc_info(0, ctypes.c_void_p(file))
libc.fclose(ctypes.c_void_p(file))
print(limited)
"""


def heaps(tmp_path: Path, word: str, **variables: str) -> tuple[str, int]:
    """What was said of the limit, and how many heaps glibc then had."""
    path = tmp_path / "heaps.xml"
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, word, str(path)], capture_output=True, text=True, check=True, env=own | variables
    )
    return done.stdout.strip(), len(re.findall(r"<heap nr=", path.read_text()))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="not glibc")
def test_threads_share_two_heaps_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    assert heaps(tmp_path, "limit") == ("True", 2)
    said, found = heaps(tmp_path, "plain")
    assert said == "None"
    assert found > 2
    said, found = heaps(tmp_path, "limit", MALLOC_ARENA_MAX="5")
    assert said == "False"
    assert found > 2
