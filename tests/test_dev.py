"""What `python3 dev.py test` makes of a test that fails once, and where its child processes find modules."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
# The first call of each name fails, in whichever process; later ones pass.
ONCE = """
import os, pathlib, pytest
def once(name):
    seen = pathlib.Path(__file__).with_name(name)
    if not seen.exists():
        seen.touch()
        raise AssertionError("the machine stood still")
"""


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """dev.py of a project of its own, with this project's conftest and an empty suite."""
    (tmp_path / "tests" / "simulation").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "simulation" / "manual_clock.py", tmp_path / "tests" / "simulation")
    shutil.copy(ROOT / "dev.py", tmp_path)
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    markers = 'pythonpath = ["tests"]\nmarkers = ["crash"]\naddopts = ["--import-mode=importlib", "-p", "xdist"]\n'
    (tmp_path / "pyproject.toml").write_text(f"[tool.pytest.ini_options]\n{markers}")
    spec = importlib.util.spec_from_file_location("dev_of_a_test", tmp_path / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    made.PYTHON = Path(sys.executable)  # type: ignore[attr-defined]
    made.WORKERS = 1  # type: ignore[attr-defined]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # They take longer to load than the tests to run.
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST"):
        monkeypatch.delenv(name, raising=False)  # Those of the run that runs this test.
    return made


def suite(dev: ModuleType, tests: str) -> tuple[str, bool]:
    (dev.HERE / "tests" / "test_some.py").write_text(ONCE + tests)
    name, passed = dev.whole_suite()
    return name, passed


@pytest.mark.parametrize("mark", ["", "@pytest.mark.xdist_group('g')\n"])
@pytest.mark.parametrize("given", ["", "u@host"])
def test_one_that_fails_once_and_passes_alone_each_time_is_named_unsteady(
    dev: ModuleType, capfd: pytest.CaptureFixture[str], mark: str, given: str
) -> None:
    mark += f"@pytest.mark.parametrize('x', ['{given}'])\n" if given else ""
    others = "def test_b(): pass\ndef test_c(): pass\n"
    name, passed = suite(dev, f"{mark}def test_a({'x' if given else ''}): once('a')\n{others}")
    assert passed
    assert name.endswith("UNSTEADY: 1 failed once: tests/test_some.py::test_a" + (f"[{given}]" if given else ""))
    assert capfd.readouterr().out.count(" 1 passed in") == 3


def test_one_that_fails_alone_too_is_a_failure(dev: ModuleType) -> None:
    name, passed = suite(dev, "def test_a(): once('a')\ndef test_b(): assert not os.environ.get('HOME', '') + '?'\n")
    assert not passed
    assert "UNSTEADY" not in name


@pytest.mark.parametrize(
    "tests",
    [
        "@pytest.mark.crash\ndef test_a(): once('a')\n",
        "@pytest.mark.parametrize('n', range(4))\ndef test_a(n): once(f'a{n}')\n",
        "def test_a():\n    try: once('a')\n    except AssertionError: os._exit(9)\n",
        "def test_a(): once('a')\nonce('file')\n",
    ],
    ids=["of durability", "of too many", "whose process died", "whose file could not be read"],
)
def test_there_is_no_second_look_at_one(dev: ModuleType, tests: str) -> None:
    name, passed = suite(dev, tests)
    assert not passed
    assert "UNSTEADY" not in name


def test_a_suite_that_passes_is_run_once(dev: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    name, passed = suite(dev, "def test_a(): pass\n")
    assert passed
    assert "UNSTEADY" not in name
    assert capfd.readouterr().out.count("1 passed") == 1


def test_bytecode_is_kept_for_the_processes_that_tests_start(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    _, passed = suite(dev, "def test_a(): assert 'PYTHONDONTWRITEBYTECODE' not in os.environ\n")
    assert passed
    assert list((dev.HERE / "tests" / "__pycache__").glob("test_some.*.pyc"))


def test_tests_of_one_group_run_in_one_process(dev: ModuleType) -> None:
    """Otherwise each worker starts a Spark of its own, and parses all sources: pytest and xdist must fit."""
    dev.WORKERS = 2  # type: ignore[attr-defined]
    noted = (
        "@pytest.mark.xdist_group('g')\n@pytest.mark.parametrize('n', range(8))\n"
        "def test_a(n): pathlib.Path(os.environ['PYTEST_XDIST_WORKER'] + f'-{n}').touch()\n"
    )
    _, passed = suite(dev, noted)
    assert passed
    ran = [path.name.partition("-")[0] for path in dev.HERE.glob("gw*-*")]
    assert len(ran) == 8
    assert len(set(ran)) == 1


def test_a_command_installs_what_it_needs_and_a_test_run_completes_it(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for build_file in ("constraints.txt", "setup.py"):
        shutil.copy(ROOT / build_file, dev.HERE)
    venv.create(dev.VENV, with_pip=False)
    installed: list[str] = []

    def run(command: list[str | Path], **_: object) -> subprocess.CompletedProcess[str]:
        installed.extend(str(word) for word in command if str(word).startswith(".["))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(dev.subprocess, "run", run)
    for extra in ("demo", "demo", "docs", "test", "demo", "docs", "test"):
        dev.prepare(extra)
    assert installed == [".[demo]", ".[docs]", ".[test]"]
    (dev.HERE / "setup.py").write_text("# changed\n")
    dev.prepare("demo")
    dev.prepare("test")
    assert installed[3:] == [".[demo]", ".[test]"]


def test_each_command_needs_an_extra_that_exists(dev: ModuleType) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {"test", *dev.EXTRAS.values()} <= set(extras)
    assert extras["demo"] == ["tiermq[spark,java]"]  # The demo needs no test tools.


def test_a_child_process_finds_the_helpers_of_the_checkout_from_any_directory(
    dev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for build_file in ("constraints.txt", "setup.py"):
        shutil.copy(ROOT / build_file, dev.HERE)
    venv.create(dev.VENV, with_pip=False)
    dev.STAMP.write_text(dev.build_hash())
    dev.prepare()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (dev.HERE / "campaign").mkdir()
    found = "import campaign, simulation; print(*campaign.__path__, *simulation.__path__)"
    monkeypatch.delenv("PYTHONPATH", raising=False)
    child = subprocess.run(
        [dev.VENV / "bin" / "python", "-c", found], cwd=elsewhere, capture_output=True, text=True, check=True
    )
    assert child.stdout.split() == [str(dev.HERE / "campaign"), str(dev.HERE / "tests" / "simulation")]
