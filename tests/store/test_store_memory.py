"""Memory does not grow with the store: beyond mapped pages, a small and a large one hold the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from tiermq import Message
from tiermq.store.local_store import LocalStore

def anonymous_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

messages = [Message(f"T{number % 8}", bytes(1000), number % 2, keys=[f"key-{number}"]) for number in range(1000)]
with LocalStore.open(sys.argv[1], mapped_file_size_commit_log=8 << 20) as store:
    def grow(rounds):
        for _ in range(rounds):
            assert store.put_many(messages).all_ok
        store.dispatch_now()
        return anonymous_kib()

    grow(2)
    small = grow(2)
    large = grow(40)
    print(store.max_physical_offset, small, large)
"""


def test_memory_does_not_grow_with_the_size_of_the_store(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store")], capture_output=True, text=True, check=True
    )
    stored, small_kib, large_kib = map(int, done.stdout.split())
    assert stored > 44 * 1000 * 1000
    assert large_kib - small_kib < 8 * 1024, "44 MB were stored; only mapped pages may have grown"
