"""Documents keep their word: commands run, code runs, tables agree with the program."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from servers.preloaded import completed
from tiermq.config import SETTINGS, WITHOUT_EFFECT, StoreConfig

ROOT = Path(__file__).resolve().parent.parent
STORE = ROOT / "tests" / "golden" / "rocketmq-5.3.3-clean" / "store"
DOCUMENTS = [ROOT / "README.md", ROOT / "docs" / "operations.md"]


def fences(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = [line for document in DOCUMENTS for fence in fences(document, "console") for line in fence.splitlines()]
    found = [line.removeprefix("$ ") for line in lines if line.startswith("$ tiermq")]
    return sorted(set(found))


def test_there_are_commands_to_run() -> None:
    assert len(commands()) >= 5


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_documents_runs(tmp_path: Path, command: str) -> None:
    shutil.copytree(STORE, tmp_path / "store")
    words = shlex.split(command)
    assert words[0] == "tiermq"
    done = completed(words[1:], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout or "--kind damage" in command


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_code_of_a_document_runs(tmp_path: Path, document: Path) -> None:
    code = fences(document, "python")
    assert code
    for piece in code:
        done = subprocess.run([sys.executable, "-c", piece], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_every_setting_is_in_the_table_with_its_default() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (`[^`]*`|none) \|", text, re.MULTILINE))
    config = StoreConfig()
    expected = {}
    for setting in SETTINGS.values():
        shown = setting.render(getattr(config, setting.name))
        expected[setting.property_name] = f"`{shown}`" if shown else "none"
    assert rows == expected


def test_settings_without_effect_are_marked_as_such() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    marked = re.findall(r"^\| `(\w+)` \|.*No effect: (.*) \|$", text, re.MULTILINE)
    assert dict(marked) == {SETTINGS[name].property_name: reason for name, reason in WITHOUT_EFFECT.items()}


def test_formats_names_modules_that_exist() -> None:
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    modules = set(re.findall(r"`(tiermq\.\w+\.\w+)`", text))
    assert len(modules) > 8
    assert [name for name in modules if not (ROOT / "src" / (name.replace(".", "/") + ".py")).is_file()] == []


def test_the_changelog_begins_with_what_is_not_released_and_the_version_of_the_package() -> None:
    from tiermq import __version__

    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert headings[1:2] in ([], [f"[{__version__}]"])
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_changelog_has_the_sections_of_keep_a_changelog() -> None:
    versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    kinds = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    assert versions
    for version in versions:
        found = re.findall(r"^### (.*)$", version, re.MULTILINE)
        assert found == [kind for kind in kinds if kind in found], version.splitlines()[0]
        for section in re.split(r"^### ", version, flags=re.MULTILINE)[1:]:
            assert re.search(r"^\* ", section, re.MULTILINE), section.splitlines()[0]
