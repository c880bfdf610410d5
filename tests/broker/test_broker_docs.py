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


def test_every_option_is_one_of_the_command() -> None:
    told = set(re.findall(r"`[^`]*?(--[a-z][\w-]+)", TEXT))
    shown = CliRunner().invoke(cli, ["serve", "--help"]).output
    assert len(told) > 8
    assert [option for option in told if option not in shown] == []


def test_the_code_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("127.0.0.1:")


def test_named_tests_exist() -> None:
    for name in re.findall(r"`(tests/[\w/]+\.py)`", TEXT):
        assert (ROOT / name).is_file(), name
