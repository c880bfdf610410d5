"""docs/embedded.md and docs/api.md keep their word."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import api_page
import tiermq
from tiermq import client
from tiermq.errors import TierMQError

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "embedded.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs_in_its_order(tmp_path: Path) -> None:
    pieces = re.findall(r"^```(python|console)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert len(pieces) >= 8
    ran = 0
    for language, text in pieces:
        if language == "python":
            words = [[sys.executable, "-c", text]]
            if "def test_" in text:
                (tmp_path / "test_page.py").write_text(text)
                words = [[sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "--rootdir", ".", "test_page.py"]]
        else:
            lines = [line.removeprefix("$ ") for line in text.splitlines()]
            words = [[sys.executable, "-m", "tiermq.cli", *shlex.split(line)[1:]] for line in lines]
        for command in words:
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
            assert done.stdout
            for promised in re.findall(r"^ *print\(.*\)  # ([^…\n]+)", text, re.MULTILINE):
                assert promised in done.stdout, f"{text}\n{done.stdout}"
            ran += 1
    assert ran > len(pieces)


def test_the_reference_is_what_the_docstrings_say() -> None:
    assert api_page.PAGE.read_text(encoding="utf-8") == api_page.page(), "run python3 tests/api_page.py"


def test_every_public_name_is_in_the_reference_with_a_docstring() -> None:
    text = api_page.PAGE.read_text(encoding="utf-8")
    public = {f"tiermq.{name}": getattr(tiermq, name) for name in tiermq.__all__}
    public |= {f"tiermq.client.{name}": getattr(client, name) for name in client.__all__}
    assert [name for name in public if f"### `{name}`" not in text] == []
    assert "See the module" not in text
    for module in api_page.OTHERS:
        package = importlib.import_module(module)
        others = {name: getattr(package, name) for name in package.__all__}
        shown = [name for name, value in others.items() if value not in public.values()]
        assert [name for name in shown if f"### `{module}.{name}`" not in text] == []
        assert all(map(inspect.getdoc, others.values())), module
    for name, value in public.items():
        assert inspect.getdoc(value), name
        is_ours = inspect.isclass(value) and value.__module__.startswith(("tiermq.embedded", "tiermq.client"))
        is_twin = name.startswith("tiermq.client.Async")
        members = vars(value).items() if is_ours and not is_twin else ()
        bare = [
            each
            for each, member in members
            if not each.startswith("_")
            and (inspect.isfunction(member) or isinstance(member, property | classmethod))
            and not inspect.getdoc(member)
        ]
        assert bare == [], f"{name} has members without a docstring"


def test_the_client_has_the_same_members_in_both_forms() -> None:
    for name in client.__all__:
        if name.startswith("Async"):
            sync, both = getattr(client, name.removeprefix("Async")), getattr(client, name)
            missing = [each for each in vars(sync) if not each.startswith("_") and not hasattr(both, each)]
            assert set(missing) <= {"receipt"}, name  # An attribute of the transaction.


def test_every_error_is_in_the_reference() -> None:
    text = api_page.PAGE.read_text(encoding="utf-8")
    kinds = [each for each in vars(tiermq.errors).values() if inspect.isclass(each) and issubclass(each, TierMQError)]
    assert [each.__name__ for each in kinds if f"| `{each.__name__}` |" not in text] == []
