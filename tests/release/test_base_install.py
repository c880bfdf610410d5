"""The plain package, `pip install tiermq` without extras: how much it weighs, and that it works by itself."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import tiermq
from notice_page import closure
from tiermq.kernel import KERNEL

WEIGHT_MAX = 40_000_000
BLOCK = 4096
SMOKE = Path(__file__).with_name("wheel_smoke.py")
# Every process of a test has it: Python imports `sitecustomize` from PYTHONPATH at its start.
ONLY_THE_BASE = """
import importlib.machinery, sys
BARRED = {barred!r}
class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in BARRED else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
"""


def test_the_plain_package_takes_at_most_40_mb_with_all_it_needs(tmp_path: Path) -> None:
    package = Path(tiermq.__file__).parent
    shutil.copytree(package, tmp_path / "tiermq", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "compileall", "-q", tmp_path], check=True)
    weights = {"tiermq": sum(map(on_disk, tmp_path.rglob("*")))}
    for name in closure("tiermq", ""):
        files = importlib.metadata.distribution(name).files
        assert files
        weights[name] = sum(on_disk(Path(str(each.locate()))) for each in files)
    shown = ", ".join(f"{name} {weight:,}" for name, weight in sorted(weights.items(), key=lambda each: -each[1]))
    assert sum(weights.values()) <= WEIGHT_MAX, shown
    assert set(weights) > {"tiermq", "lz4", "PyYAML", "starlette"}


def on_disk(path: Path) -> int:
    """Bytes of a file in whole blocks, as `du` counts them."""
    return -(-path.stat().st_size // BLOCK) * BLOCK if path.is_file() else 0


def plain(name: str) -> str:
    return name.lower().replace("_", "-")


def test_the_plain_package_works_without_what_its_extras_install(tmp_path: Path) -> None:
    base = {*map(plain, closure("tiermq", "")), "tiermq", "setuptools", "pip"}
    barred = {
        module
        for module, names in importlib.metadata.packages_distributions().items()
        if not {plain(name) for name in names} & base
    }
    assert {"numpy", "obstore", "pyarrow", "rich"} <= barred
    (tmp_path / "sitecustomize.py").write_text(ONLY_THE_BASE.format(barred=sorted(barred)))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, SMOKE, KERNEL], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(": ok\n")
