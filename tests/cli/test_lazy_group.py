"""Groups whose commands are imported when they are called."""

from __future__ import annotations

import click
from click.testing import CliRunner

from tiermq.cli.lazy_group import Entry, LazyGroup
from tiermq.errors import BadConfig


@click.command()
def failing() -> None:
    raise BadConfig("expected three, found four")


@click.group(
    cls=LazyGroup,
    entries={"bad": Entry(__name__, "failing", "It fails."), "far": Entry("no.such.module", "x", "Never imported.")},
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
