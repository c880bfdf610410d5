"""What the jobs' commands share."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from tiermq.cli.pipeline_options import HERE, bar, finish, job_options, parsed_conf, spark_for
from tiermq.errors import BadConfig
from tiermq.spark.jobs.job_report import JobReport


def test_settings_of_spark_are_name_and_value() -> None:
    assert parsed_conf(("spark.a=1", "spark.b=x=y")) == {"spark.a": "1", "spark.b": "x=y"}
    with pytest.raises(BadConfig, match="KEY=VALUE.*'spark.a'"):
        parsed_conf(("spark.a",))


def test_here_is_no_session() -> None:
    with spark_for(HERE) as session:
        assert session is None
    with pytest.raises(BadConfig, match="leave out one"), spark_for(HERE, ("spark.a=1",)):
        pass


def test_nobody_watches_a_test() -> None:
    with bar("working") as progress:
        progress(1, 2)


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("problems", [[], ["it is broken"]])
def test_a_report_is_shown_and_problems_are_the_exit_code(
    as_json: bool, problems: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    report = JobReport("job", "file:///t", problems=problems, details={"notes": ["look there"], "rows": ["r"] * 30})
    with pytest.raises(SystemExit) as end:
        finish(report, as_json=as_json, details=lambda made: iter(made.details["rows"]))
    assert end.value.code == len(problems)
    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out) == report.as_dict()
    else:
        assert out.startswith("job of file:///t")
        assert "note: look there" in out
        assert "and 10 more" in out
        assert ("problem: it is broken" in out) == bool(problems)


def test_every_job_has_the_same_options() -> None:
    @click.command()
    @job_options
    def job(master: str, conf: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
        click.echo(f"{master} {conf} {dry_run} {as_json}")

    output = CliRunner().invoke(job, ["--master", "here", "--conf", "a=b", "--dry-run", "--json"]).output
    assert output == "here ('a=b',) True True\n"
