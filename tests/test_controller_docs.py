"""docs/controller.md keeps its word: its settings are the program's, and its commands run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from servers.loopback import free_ports
from tiermq.broker.rocketmq_settings import CONTROLLER
from tiermq.broker.settings_file import read_settings_file
from tiermq.controller.controller_config import ControllerConfig
from tiermq.settings import settings_of

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "controller.md").read_text(encoding="utf-8")


def test_every_setting_of_a_controller_is_in_its_table_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (`[^`]*`|none) \|", TEXT, re.MULTILINE))
    expected = {}
    for setting in settings_of(ControllerConfig).values():
        shown = setting.render(setting.default)
        expected[setting.property_name] = f"`{shown}`" if shown else "none"
    assert rows == expected


def test_the_commands_of_the_quick_start_say_what_the_document_reports(tmp_path: Path) -> None:
    [block] = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    lines = [line.strip() for line in block.splitlines() if line.strip()]
    ports = dict(zip(("9876", "9878"), map(str, free_ports(2)), strict=True))

    def here(line: str) -> str:
        for written, port in ports.items():
            line = line.replace(written, port)
        return line.replace("/tmp/controller", f"{tmp_path}/state")

    said = {lines[0]: "name server ready at", lines[1]: here(lines[2])}
    for command, expected in said.items():
        words = shlex.split(here(command).removeprefix("$ tiermq "))
        process = subprocess.Popen([sys.executable, "-m", "tiermq.cli", *words], stdout=subprocess.PIPE, text=True)
        with process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(expected)
            process.terminate()
        assert process.returncode == 0


def test_the_settings_of_a_tiermq_broker_are_taken_and_ask_for_nothing_that_is_missing(tmp_path: Path) -> None:
    blocks = re.findall(r"^```properties\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    (tmp_path / "broker.conf").write_text(blocks[-1])
    found = read_settings_file(tmp_path / "broker.conf")
    assert found.broker["enable_controller_mode"] == "true"
    assert (list(found.ignored), list(found.unknown), found.unkept()) == ([], [], [])
    (tmp_path / "other.conf").write_text("allAckInSyncStateSet=true\n")
    assert len(read_settings_file(tmp_path / "other.conf").unkept()) == 1
    assert read_settings_file(tmp_path / "other.conf").unkept({CONTROLLER}) == []
