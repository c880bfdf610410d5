"""The fixture in a user's test file, run by pytest in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

USERS_TEST = """
import pytest
from tiermq.testing import LocalBroker


@pytest.fixture
def tiermq_broker_settings():
    return {"broker_name": "chosen"}


def test_one(tiermq_broker):
    assert isinstance(tiermq_broker, LocalBroker)
    assert tiermq_broker.broker.config.broker_name == "chosen"
    tiermq_broker.send("orders", b"mine")
    assert len(tiermq_broker.messages("orders")) == 1


def test_another_has_a_broker_of_its_own(tiermq_broker):
    assert tiermq_broker.messages("orders") == []
"""


def run(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    plugin = "tiermq.testing.pytest_plugin"
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", plugin, "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=path, capture_output=True, text=True, check=False)


def test_a_user_s_tests_have_a_broker_each_with_the_settings_that_they_chose(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(USERS_TEST)
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_a_run_that_uses_no_broker_imports_none(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n\ndef test_nothing():\n    assert 'tiermq.broker.broker' not in sys.modules\n"
    )
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pytest_finds_the_plugin_by_itself_where_the_package_is_installed() -> None:
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    assert '"tiermq.testing.pytest_plugin" = "tiermq.testing.pytest_plugin"' in pyproject.read_text()
