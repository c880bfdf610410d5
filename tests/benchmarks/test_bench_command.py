"""`tiermq bench` finds the checkout's benchmarks, or says that there are none."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from tiermq.cli import bench
from tiermq.cli.main import cli


def test_an_unknown_benchmark_is_refused_with_the_names_of_those_that_exist() -> None:
    result = CliRunner().invoke(cli, ["bench", "everything"])
    assert result.exit_code == 2
    assert "put, get, dispatch, recover, index" in result.output


def test_without_a_checkout_it_says_where_the_benchmarks_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "site-packages" / "tiermq" / "cli" / "bench.py"))
    result = CliRunner().invoke(cli, ["bench", "put"])
    assert result.exit_code == 1
    assert "dev.py bench put" in result.output


def test_arguments_go_to_the_benchmark_and_its_result_comes_out_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("benchmarks.bench_put")
    report = ModuleType("benchmarks.report")
    fake.run = lambda arguments: {"arguments": arguments}  # type: ignore[attr-defined]
    report.print_result = lambda result, as_json: print(json.dumps([result, as_json]))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "benchmarks.bench_put", fake)
    monkeypatch.setitem(sys.modules, "benchmarks.report", report)
    result = CliRunner().invoke(cli, ["bench", "put", "--quick", "--json", "--rounds", "2"])
    assert result.exit_code == 0
    assert json.loads(result.output) == [{"arguments": ["--quick", "--rounds", "2"]}, True]


@pytest.mark.parametrize("name", bench.NAMES)
def test_every_benchmark_named_here_exists(name: str) -> None:
    assert (bench.checkout_root() / "benchmarks" / f"bench_{name}.py").is_file()
