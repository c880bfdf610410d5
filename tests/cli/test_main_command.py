"""The front door: help that teaches, quickly, and errors in words."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tiermq import __version__
from tiermq.cli.main import COMMANDS, cli
from tiermq.errors import StoreLocked
from tiermq.kernel import KERNEL


def test_help_names_every_command_and_shows_how_to_start() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output for name in COMMANDS)
    assert "tiermq demo" in result.output


GROUPS = [name for name in COMMANDS if isinstance(cli.get_command(click.Context(cli), name), click.Group)]


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_short_help_is_not_cut_at_80_columns(group: str) -> None:
    result = CliRunner().invoke(cli, [*group.split(), "--help"], terminal_width=80)
    assert result.exit_code == 0
    listed = result.output.partition("\nCommands:\n")[2].splitlines()
    assert listed
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


def commands_of(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """Path and help of a command and of all below it."""
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands_of(below, click.Context(below, info_name=name, parent=context))


@pytest.mark.parametrize("columns", [80, 200])
def test_no_help_is_wider_than_80_columns(columns: int) -> None:
    root = click.Context(cli, info_name="tiermq", terminal_width=None, **cli.context_settings)
    root.terminal_width = min(columns, root.max_content_width or columns)
    wide = [(path, line) for path, text in commands_of(cli, root) for line in text.splitlines() if len(line) > 80]
    assert wide == []


def test_the_version_is_the_package_s() -> None:
    printed = CliRunner().invoke(cli, ["--version"]).output
    assert __version__ in printed
    assert f"{KERNEL} kernel" in printed


def test_every_command_has_examples_of_itself_in_its_help_or_in_that_of_its_group() -> None:
    root = click.Context(cli, info_name="tiermq")
    texts = dict(commands_of(cli, root))
    examples = {path: text.partition("Examples:")[2] for path, text in texts.items()}
    bare = [
        path
        for path in texts
        if path != "tiermq"
        and f"{path} " not in examples[path] + examples[path.rpartition(" ")[0]] + "\n"
        and not re.search(rf"{re.escape(path)}$", examples[path] + examples[path.rpartition(" ")[0]], re.MULTILINE)
    ]
    assert bare == []


def test_every_command_takes_json_but_those_that_print_nothing_else() -> None:
    root = click.Context(cli, info_name="tiermq")
    groups = {path.rpartition(" ")[0] for path, _ in commands_of(cli, root)}
    without = {path for path, text in commands_of(cli, root) if path not in groups and "--json" not in text}
    assert without == {"tiermq api", "tiermq completion"}, "JSON always, and a script"


def test_help_loads_no_command_and_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from tiermq.cli.main import cli\n"
        "CliRunner().invoke(cli, ['--help'])\n"
        "heavy, light = ('obstore', 'numpy', 'tiermq.cli.'), ('tiermq.cli.main', 'tiermq.cli.conventions')\n"
        "print([name for name in sys.modules if name.startswith(heavy) and name not in light])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_error_of_ours_is_reported_in_words_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def broken() -> None:
        raise StoreLocked("another process holds it")

    monkeypatch.setattr("tiermq.cli.main.LazyGroup.get_command", lambda *_: broken)
    result = CliRunner().invoke(cli, ["demo"])
    assert result.exit_code == 1
    assert "another process holds it" in result.output
    assert "Traceback" not in result.output


def test_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(cli, ["frobnicate"])
    assert result.exit_code == 2
    assert "frobnicate" in result.output
