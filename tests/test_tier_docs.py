"""docs/tier.md keeps its word: its table of settings agrees with the program, its commands run."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from servers.preloaded import completed
from tiermq.tier.tier_config import SETTINGS, WITHOUT_EFFECT

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "tier.md").read_text(encoding="utf-8")
GOLDEN = ROOT / "tests" / "golden" / "rocketmq-5.3.3-tier"
FENCES = re.findall(r"^```console\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_every_setting_of_the_tier_is_in_its_table_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (`[^`]*`|none) \|", TEXT, re.MULTILINE))
    expected = {
        s.property_name: f"`{s.render(s.default)}`" if s.render(s.default) else "none" for s in SETTINGS.values()
    }
    assert rows == expected


def test_settings_of_the_tier_without_effect_are_marked_as_such() -> None:
    marked = re.findall(r"^\| `(\w+)` \|.*No effect: (.*) \|$", TEXT, re.MULTILINE)
    assert dict(marked) == {SETTINGS[name].property_name: reason for name, reason in WITHOUT_EFFECT.items()}


@pytest.mark.parametrize("fence", FENCES, ids=range(len(FENCES)))
def test_the_commands_of_the_document_run_in_their_order(tmp_path: Path, fence: str) -> None:
    shutil.copytree(GOLDEN, tmp_path / "here")
    commands = [line.removeprefix("$ ") for line in fence.splitlines() if line.startswith("$ tiermq")]
    assert commands
    for command in commands:
        words = shlex.split(command.replace("$PWD", str(tmp_path / "here")))
        done = completed(words[1:], tmp_path / "here")
        assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
        assert done.stdout or "orphans" in command


def test_the_formats_of_the_tier_name_modules_that_exist() -> None:
    formats = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    modules = set(re.findall(r"`(tiermq\.tier\.[\w.]+)`", formats))
    assert len(modules) >= 6
    assert [name for name in modules if not (ROOT / "src" / (name.replace(".", "/") + ".py")).is_file()] == []
