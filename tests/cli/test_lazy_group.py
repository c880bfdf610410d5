"""Groups whose commands are imported when they are called."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from tiermq.cli.main import Entry, LazyGroup, cli
from tiermq.errors import BadConfig


@click.command()
def failing() -> None:
    raise BadConfig("expected three, found four")


@click.command()
@click.argument("module")
def needing(module: str) -> None:
    raise ModuleNotFoundError(f"No module named {module!r}", name=module)


@click.group(
    cls=LazyGroup,
    entries={
        "bad": Entry(__name__, "failing", "It fails."),
        "needing": Entry(__name__, "needing", "It needs a module."),
        "far": Entry("no.such.module", "x", "Never imported."),
    },
)
def group() -> None:
    """A group."""


def test_help_imports_no_command() -> None:
    result = CliRunner().invoke(group, ["--help"])
    assert result.exit_code == 0
    assert "Never imported." in result.output


def test_an_error_of_ours_is_one_line_and_no_trace() -> None:
    result = CliRunner().invoke(group, ["bad"])
    assert result.exit_code == 1
    assert result.output == "Error: expected three, found four\n"


def test_an_unknown_command_is_named() -> None:
    result = CliRunner().invoke(group, ["worse"])
    assert result.exit_code == 2
    assert "No such command 'worse'" in result.output


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["consum"], "consume or console"), (["tier", "verfy"], "verify"), (["broker", "statsu"], "status")],
)
def test_a_misspelt_command_gets_a_suggestion(words: list[str], meant: str) -> None:
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert f"No such command '{words[-1]}'. Did you mean {meant}?" in result.output


@pytest.mark.parametrize(("module", "extra"), [("pyspark.sql", "spark"), ("pyarrow", "spark"), ("deltalake", "tables")])
def test_a_module_of_an_extra_that_is_missing_is_named_with_its_extra(module: str, extra: str) -> None:
    result = CliRunner().invoke(group, ["needing", module])
    assert result.exit_code == 1
    name = module.partition(".")[0]
    hint = f"pip install 'tiermq[{extra}]', or in a checkout: pip install -e '.[{extra}]'"
    assert result.output == f"Error: group needing needs {name}, which is not installed here: {hint}\n"


def test_numpy_alone_is_named_for_jobs_without_spark() -> None:
    result = CliRunner().invoke(group, ["needing", "numpy"])
    assert "pip install numpy is enough for --master here; with Spark pip install 'tiermq[spark]'" in result.output


def test_a_module_of_ours_that_is_missing_is_a_bug_and_stays_one() -> None:
    result = CliRunner().invoke(group, ["far"])
    assert isinstance(result.exception, ModuleNotFoundError)
