"""docs/broker.md keeps its word."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from tiermq.broker.broker_config import BrokerConfig
from tiermq.cli.main import cli
from tiermq.remoting.codes import ResponseCode
from tiermq.settings import settings_of

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "broker.md").read_text(encoding="utf-8")


def test_every_setting_is_in_the_table_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (`[^`]*`|none) \|", TEXT, re.MULTILINE))
    expected = {}
    for setting in settings_of(BrokerConfig).values():
        shown = setting.render(setting.default)
        expected[setting.property_name] = f"`{shown}`" if shown else "none"
    assert rows == expected


def test_codes_have_their_names() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", TEXT, re.MULTILINE)
    assert len(rows) > 8
    assert all(ResponseCode(int(code)).name == name for code, name in rows)


def test_every_option_is_one_of_a_command_of_its_line_or_of_serve() -> None:
    told = 0
    for line in TEXT.splitlines():
        options = re.findall(r"(?<![\w-])(--[a-z][\w-]+)", " ".join(re.findall(r"`([^`]*)`", line)))
        told += len(options)
        commands = re.findall(r"tiermq ((?:topic|group) \w+|\w+)", line)
        shown = "".join(help_of(command) for command in {*commands, "serve"}) if options else ""
        assert [option for option in options if option not in shown] == [], line
    assert told > 8


def help_of(command: str) -> str:
    result = CliRunner().invoke(cli, [*command.split(), "--help"])
    assert result.exit_code == 0, command
    return result.output


def test_the_code_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("127.0.0.1:")


def test_named_tests_exist() -> None:
    for name in re.findall(r"`(tests/[\w/]+\.py)`", TEXT):
        assert (ROOT / name).is_file(), name
