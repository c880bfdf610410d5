"""The package is built with a compiler and without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD_FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE", "MANIFEST.in", "native", "src")


def names_in_wheel(folder: Path, **environment: str) -> list[str]:
    """Build a wheel from a copy of the checkout, so that nothing here is touched, and list what is in it."""
    for name in BUILD_FILES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
        else:
            shutil.copy(source, folder / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", "out", "."]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (folder / "out").glob("tiermq-*.whl")
    return zipfile.ZipFile(wheel).namelist()


@pytest.mark.slow
def test_without_a_working_compiler_the_package_is_built_in_pure_python(tmp_path: Path) -> None:
    names = names_in_wheel(tmp_path, CC="/bin/false")
    assert "tiermq/kernel/pure.py" in names
    assert "tiermq/py.typed" in names
    assert "pyspark_tiermq.py" in names  # By which Spark knows the format by itself.
    assert "tiermq/spark/log4j2.properties" in names
    assert "tiermq/spark/PruneMessages.java" in names
    assert not [name for name in names if name.endswith(".so")]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_with_a_compiler_the_kernel_is_in_the_package(tmp_path: Path) -> None:
    names = names_in_wheel(tmp_path)
    assert [name for name in names if name.startswith("tiermq/kernel/compiled.") and name.endswith(".so")]
    assert not [name for name in names if name.endswith(".c")]
