"""`dev.py bench`: which benchmarks there are, what they get, how their results are shown."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

import benchmarks
from benchmarks.__main__ import NAMES, bench

FOLDER = Path(benchmarks.__file__).parent


def test_an_unknown_benchmark_is_refused_with_the_names_of_those_that_exist() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "everything"],
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "put, get, dispatch, recover, index" in done.stderr
    assert "dev.py bench" in done.stderr


def test_arguments_go_to_the_benchmark_and_its_result_comes_out_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("benchmarks.bench_put")
    report = ModuleType("benchmarks.report")
    fake.run = lambda arguments: {"arguments": arguments}  # type: ignore[attr-defined]
    report.print_result = lambda result, as_json: print(json.dumps([result, as_json]))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "benchmarks.bench_put", fake)
    monkeypatch.setitem(sys.modules, "benchmarks.report", report)
    result = CliRunner().invoke(bench, ["put", "--quick", "--json", "--rounds", "2"])
    assert result.exit_code == 0
    assert json.loads(result.output) == [{"arguments": ["--quick", "--rounds", "2"]}, True]


def test_every_benchmark_has_its_name_in_the_command() -> None:
    assert sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py")) == sorted(NAMES)
