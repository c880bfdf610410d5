"""The group of the jobs."""

from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner

from tiermq.cli.main import cli
from tiermq.cli.pipeline import COMMANDS


def test_the_group_teaches_what_there_is() -> None:
    result = CliRunner().invoke(cli, ["pipeline", "--help"])
    assert result.exit_code == 0
    for name, entry in COMMANDS.items():
        assert name in result.output
        assert entry.help.split()[0] in result.output


def test_every_job_lives_in_a_module_of_its_name() -> None:
    assert all(entry[:2] == (f"tiermq.cli.pipeline_{name}", name) for name, entry in COMMANDS.items())


def test_help_does_not_wait_for_spark() -> None:
    code = "import sys; from tiermq.cli.pipeline import pipeline; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
