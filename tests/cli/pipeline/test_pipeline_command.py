"""The group of the jobs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner, Result
from pyspark.errors import PySparkException

from tiermq.cli.main import cli
from tiermq.cli.pipeline.commands import COMMANDS, JobGroup, is_of_spark, spark_error_text


def test_the_group_teaches_what_there_is() -> None:
    result = CliRunner().invoke(cli, ["pipeline", "--help"])
    assert result.exit_code == 0
    for name, entry in COMMANDS.items():
        assert name in result.output
        assert entry.help.split()[0] in result.output


def test_every_job_lives_in_a_module_of_its_name() -> None:
    assert all(entry[:2] == (f"tiermq.cli.pipeline.{name}", name) for name, entry in COMMANDS.items())


def test_help_does_not_wait_for_spark() -> None:
    code = "import sys; from tiermq.cli.pipeline.commands import pipeline; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("[X] no\nTraceback (most recent call last):\n  File\npkg.BadOption: no\nValueError: so\n", "ValueError: so"),
        ("[TABLE_NOT_FOUND] first\nsecond\n\nJVM stacktrace:\norg.Error: java", "[TABLE_NOT_FOUND] first"),
        ("", "no reason was given"),
    ],
)
def test_of_what_spark_reports_one_line_is_shown(text: str, reported: str) -> None:
    assert spark_error_text(text) == reported


def raising(error: Exception) -> Result:
    group = JobGroup("jobs", entries={})

    @group.command()
    def job() -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group, "get_command", lambda _context, _name: job)  # The one that there is.
        return CliRunner().invoke(group, ["job"])


def test_what_the_system_or_spark_raises_is_one_line_and_a_mistake_of_ours_is_not_hidden() -> None:
    denied = raising(PermissionError(13, "Permission denied", "/lake"))
    assert (denied.exit_code, denied.output) == (1, "Error: [Errno 13] Permission denied: '/lake'\n")
    lost = raising(PySparkException("Job aborted\nTraceback\nOSError: no space"))
    assert (lost.exit_code, lost.output) == (1, "Error: the Spark job failed: OSError: no space\n")
    ours = raising(ZeroDivisionError("a mistake"))
    assert isinstance(ours.exception, ZeroDivisionError)
    assert not is_of_spark(ZeroDivisionError())
