"""What docs/delivery.md says of transactions: its code runs, its commands and tests exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from tiermq.cli.main import cli
from tiermq.testing import LocalBroker

ROOT = Path(__file__).parents[3]
SECTION = (ROOT / "docs" / "delivery.md").read_text().partition("\n## Transactions\n")[2].partition("\n## ")[0]


def test_the_example_of_a_transaction_commits_its_message(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
    with LocalBroker(tmp_path) as broker:
        broker.create_topic("orders", queues=2)
        shown = code.replace("127.0.0.1:9876", broker.name_server)
        assert shown != code
        done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (message,) = broker.messages("orders")
        assert (message.body, message.keys) == (b"order 42 is paid", ["order-42"])


def test_the_commands_that_are_shown_for_transactions_exist() -> None:
    shown = re.findall(r"^tiermq (transaction \w+)(.*)$", SECTION, re.MULTILINE)
    assert len(shown) == 3
    for command, words in shown:
        help_text = CliRunner().invoke(cli, [*command.split(), "--help"]).output
        assert [option for option in re.findall(r"--\w+", words) if option not in help_text] == []


def test_the_tests_of_transactions_that_are_named_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", SECTION)
    assert len(named) == 2
    assert [name for name in named if not (ROOT / name).is_file()] == []
