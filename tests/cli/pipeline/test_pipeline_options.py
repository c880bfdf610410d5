"""What the jobs' commands share."""

from __future__ import annotations

import json
import socket

import click
import pytest
from click.testing import CliRunner

from tiermq.cli.pipeline_options import HERE, bar, check_master, finish, job_options, parsed_conf, spark_for
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


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[2]", "local[2, 4]", "local-cluster[2,1,1024]", "yarn", "k8s://https://host:1"],
)
def test_a_master_is_believed_where_only_spark_can_tell(master: str) -> None:
    check_master(master)


def test_one_of_several_masters_that_answers_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        ports = silent.getsockname()[1], server.getsockname()[1]
        check_master("spark://{}:{},{}:{}".format("127.0.0.1", ports[0], "127.0.0.1", ports[1]))
        check_master(f"sc://127.0.0.1:{ports[1]}/;user_id=me")
        with pytest.raises(BadConfig, match="found none"):
            check_master(f"spark://127.0.0.1:{ports[0]}")


@pytest.mark.parametrize("master", ["", "locall", "local[0]", "local[2", "local[x]", "spark://host", "http://host:1"])
def test_other_masters_are_refused(master: str) -> None:
    with pytest.raises(BadConfig, match="--master is"):
        check_master(master)


def test_a_dry_run_waits_for_no_spark() -> None:
    with spark_for("spark://host.invalid:7077", ("spark.a=1",), needed=False) as session:
        assert session is None
    with pytest.raises(BadConfig, match="KEY=VALUE"), spark_for("local", ("spark.a",), needed=False):
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
