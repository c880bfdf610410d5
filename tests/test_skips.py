"""A lane that could not run is no green lane: TIERMQ_MUST_RUN=1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skips import VARIABLE

OUT_OF_REACH = "no real RocketMQ here: no registry"


@pytest.mark.parametrize(
    ("is_set", "reason", "code"),
    [
        (True, OUT_OF_REACH, 1),
        (False, OUT_OF_REACH, 0),
        (True, "not applicable: starts a proxy in the process of the test", 0),
    ],
)
def test_a_skip_fails_a_run_that_must_run(tmp_path: Path, is_set: bool, reason: str, code: int) -> None:
    tests = Path(__file__).parent
    (tmp_path / "test_it.py").write_text(f"import pytest\n\ndef test_it():\n    pytest.skip({reason!r})\n")
    environment = {**os.environ, VARIABLE: "1" if is_set else ""}
    words = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "conftest", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(words, cwd=tests, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert (f"found skipped: 1 x {reason}" in done.stdout) is (code == 1)
