"""What a worker does once."""

from __future__ import annotations

import subprocess
import sys


def test_a_worker_freezes_what_it_has_imported_once() -> None:
    # In a process of its own: the collector of this one is left alone.
    program = (
        "import gc\nfrom tiermq.spark.worker import freeze_once\n"
        "assert gc.get_freeze_count() == 0\n"
        "freeze_once()\nfrozen = gc.get_freeze_count()\nassert frozen > 0\n"
        "more = [[] for _ in range(1000)]\nfreeze_once()\nassert gc.get_freeze_count() <= frozen\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
