"""What macOS is written for, and never ran there: the embedded store and the client without what only Linux has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiermq import LocalStore


@pytest.mark.parametrize("pure", ["", "1"], ids=["compiled", "pure"])
def test_the_embedded_store_and_the_client_need_nothing_that_only_linux_has(tmp_path: Path, pure: str) -> None:
    def run(step: str) -> None:
        done = subprocess.run(
            [sys.executable, "-W", "error", str(Path(__file__).with_name("on_macos.py")), step, str(tmp_path)],
            env={**os.environ, "TIERMQ_PURE": pure},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr

    run("put")
    assert (tmp_path / "crashed" / "abort").exists()
    run("read")
    with LocalStore.open(tmp_path / "crashed") as store:  # Here nothing is taken away: the bytes are the same.
        assert [message.body for message in store.read("orders")][-2:] == [b"4999", b"more"]
