"""docs/spark_jobs.md and docs/spark_tables.md keep their word: their commands and their Python run, in their order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tiermq import Message
from tiermq.cli.main import cli
from tiermq.cli.pipeline.commands import COMMANDS
from tiermq.store.local_store import LocalStore
from tiermq.testing import LocalBroker

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAMES = ("spark_jobs.md", "spark_tables.md")


def fences(name: str, language: str) -> list[str]:
    text = (DOCS / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a store in it, and nothing else."""
    with LocalStore.open(tmp_path / "store", background=False, mapped_file_size_commit_log=1 << 20) as store:
        for number in range(90):
            topic, tags = ("orders" if number % 3 else "returns"), ("paid" if number % 2 else "open")
            body = b'{"id": %d, "price": 1.5}' % number
            store.put(Message(topic, body, 0, keys=[f"order-{number}"], tags=tags))
        store.dispatch_now()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_run_in_their_order(here: Path, name: str) -> None:
    commands = [line.removeprefix("$ ") for fence in fences(name, "console") for line in fence.splitlines()]
    assert len(commands) >= 9
    with LocalBroker(here / "broker") as broker:
        for command in commands:
            words = shlex.split(command.replace("$PWD", str(here)).replace("$NAMESRV", broker.name_server))
            found = CliRunner().invoke(cli, words[1:])
            assert found.exit_code == 0, f"{command}: {found.output} {found.exception}"
            assert found.output


def test_the_python_of_tables_runs(here: Path) -> None:
    for fence in fences("spark_tables.md", "python"):
        exec(compile(fence, "spark_tables.md", "exec"), {"__name__": "tables"})
    assert list((here / "lake" / "by-python").glob("*.parquet"))


def test_the_function_of_a_replay_does_what_it_reports() -> None:
    from tiermq.pipeline.replay.message import ReplayMessage, SourcePosition

    names: dict[str, Any] = {}
    exec(compile(fences("spark_jobs.md", "python")[1], "spark_jobs.md", "exec"), names)
    message = ReplayMessage("orders", b"secret", 0, SourcePosition("b", "orders", 0, 1), "paid", ("k",))
    assert (names["anonymise"](message).body, names["anonymise"](message).keys) == (b"{}", ())


def test_every_job_has_its_heading() -> None:
    headings = re.findall(r"^## (\w+)$", (DOCS / "spark_jobs.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(headings) == sorted(COMMANDS)
