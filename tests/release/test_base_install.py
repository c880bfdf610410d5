"""The plain package, `pip install tiermq` without extras: how much it weighs, and that it works by itself."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tiermq
from notice_page import ROOT, closure
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


@pytest.fixture(scope="module")
def own_weight(tmp_path_factory: pytest.TempPathFactory) -> int:
    """What an installer writes of the package, with its bytecode."""
    path = tmp_path_factory.mktemp("package")
    package = Path(tiermq.__file__).parent
    shutil.copytree(package, path / "tiermq", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "compileall", "-q", path], check=True)
    return sum(map(on_disk, path.rglob("*")))


def weights(extra: str) -> dict[str, int]:
    """Bytes on disk of each distribution that the package needs with an extra."""
    found = {}
    for name in closure("tiermq", extra):
        files = importlib.metadata.distribution(name).files
        assert files
        found[name] = sum(on_disk(Path(str(each.locate()))) for each in files)
    return found


def test_the_plain_package_takes_at_most_40_mb_with_all_it_needs(own_weight: int) -> None:
    found = {"tiermq": own_weight, **weights("")}
    shown = ", ".join(f"{name} {weight:,}" for name, weight in sorted(found.items(), key=lambda each: -each[1]))
    assert sum(found.values()) <= WEIGHT_MAX, shown
    assert set(found) > {"tiermq", "lz4", "PyYAML", "starlette"}


@pytest.mark.parametrize(("words", "extra"), [
    (r"plain package \(.*?\)", ""), (r"`\[s3\]` \(.*?\)", "s3"), (r"`\[broker\]`", "broker"), (r"`\[spark\]`", "spark"),
    (r"`\[java\]`", "java"),
])  # fmt: skip
def test_the_readme_says_what_each_extra_takes_on_disk(own_weight: int, words: str, extra: str) -> None:
    """Rounded up, and no more than a tenth too much: the figure is of CPython 3.11, and bytecode differs."""
    [(said, unit)] = re.findall(rf"{words} ([\d.]+) (MB|GB)", (ROOT / "README.md").read_text())
    promised = float(said) * {"MB": 1_000_000, "GB": 1_000_000_000}[unit]
    added = weights(extra)
    if extra == "java":  # Said as what it adds.
        found = sum(weight for name, weight in added.items() if name not in weights(""))
    else:
        found = own_weight + sum(added.values())
    assert promised * 0.9 <= found <= promised, f"{extra or 'plain'}: {found:,} bytes, README.md: {said} {unit}"


def on_disk(path: Path) -> int:
    """Bytes of a file in whole blocks, as `du` counts them."""
    return -(-path.stat().st_size // BLOCK) * BLOCK if path.is_file() else 0


def plain(name: str) -> str:
    return name.lower().replace("_", "-")


@pytest.fixture
def base_environment(tmp_path: Path) -> dict[str, str]:
    """Variables with which a Python has the plain package and nothing else."""
    base = {*map(plain, closure("tiermq", "")), "tiermq", "setuptools", "pip"}
    barred = {
        module
        for module, names in importlib.metadata.packages_distributions().items()
        if not {plain(name) for name in names} & base
    }
    assert {"numpy", "obstore", "pyarrow", "rich"} <= barred
    (tmp_path / "sitecustomize.py").write_text(ONLY_THE_BASE.format(barred=sorted(barred)))
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def test_the_plain_package_works_without_what_its_extras_install(
    tmp_path: Path, base_environment: dict[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, SMOKE, KERNEL], env=base_environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(": ok\n")


def test_the_demo_of_the_plain_package_says_what_it_needs_before_it_starts_a_broker(
    tmp_path: Path, base_environment: dict[str, str]
) -> None:
    words = [sys.executable, "-m", "tiermq.cli", "demo", "--messages", "100", "--no-page", "--master", "here"]
    done = subprocess.run(words, env=base_environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "tiermq demo needs numpy, which is not installed here: pip install numpy is enough" in done.stderr
