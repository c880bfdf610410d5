"""What the jobs' commands share."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading

import click
import pytest
from click.testing import CliRunner

from tiermq.cli.pipeline.options import (
    HERE,
    check_master,
    finish,
    job_options,
    offsets_of,
    parsed_conf,
    queue_ranges,
    source_arguments,
    spark_for,
    stopped_by_signals,
)
from tiermq.clock import SystemClock
from tiermq.errors import BadConfig, BadOption
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.scan.scan_spec import scan_spec


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
        found = json.loads(out)
        assert (found.pop("dryRun"), found.pop("tookS")) == (False, 0.0)
        assert found == {name: value for name, value in report.as_dict().items() if name not in ("dry_run", "took_s")}
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


def test_only_what_was_said_becomes_an_argument() -> None:
    assert source_arguments(tier="file:///t", stores=(), topics=()) == {"tier": "file:///t"}
    found = source_arguments(tier=None, stores=("a=c/b1", "b=b2"), topics=("x",), queues=(1,), offsets="1:")
    assert found == {
        "store": ["a=c/b1", "b=b2"], "topic": ["x"], "queues": [1], "offsets": (1, None),
    }  # fmt: skip


def test_a_place_must_be_said_and_brokers_of_all_stores_or_of_none() -> None:
    with pytest.raises(BadConfig, match="no source"):
        source_arguments(tier=None, stores=(), topics=())
    with pytest.raises(BadOption, match="of every store"):
        scan_spec(**source_arguments(tier=None, stores=("a=b", "c"), topics=()))


@pytest.mark.parametrize(("text", "pair"), [("1:2", (1, 2)), (":2", (None, 2)), ("7:", (7, None)), (None, None)])
def test_offsets_are_two_numbers_with_a_colon(text: str | None, pair: object) -> None:
    assert offsets_of(text) == pair


@pytest.mark.parametrize("text", ["", ":", "5", "a:b", "-1:3", "9:3"])
def test_other_offsets_are_refused(text: str) -> None:
    with pytest.raises(BadConfig, match="FROM:TO"):
        offsets_of(text)


def test_the_first_signal_asks_to_stop_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop = threading.Event()
    with stopped_by_signals(stop, "wave"):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(10)
    assert signal.getsignal(signal.SIGTERM) == before


def test_ranges_of_queues_are_lines() -> None:
    rows = [{"queue": "c/b/orders/0", "ranges": [[0, 5], [9, 12]]}]
    assert list(queue_ranges(JobReport("job", "here", details={"queues": rows}))) == ["c/b/orders/0: 0..5, 9..12"]
    assert list(queue_ranges(JobReport("job", "here"))) == []


def test_times_are_of_any_form_and_without_a_zone_in_utc() -> None:
    def times(since: str, until: str) -> tuple[int, int]:
        found = source_arguments(tier="file:///t", stores=(), topics=(), since=since, until=until)
        return found["since"], found["until"]

    assert times("1769860800000", "2026-01-31T12:00:00") == (1_769_860_800_000, 1_769_860_800_000)
    assert times("2026-01-31T12:00:00+00:00", "2026-01-31T13:00:00+01:00") == (1_769_860_800_000,) * 2
    older, newer = times("2h", "1h")
    assert 3_599_000 <= newer - older <= 3_601_000
    assert abs(newer + 3_600_000 - SystemClock().now_ms()) < 60_000
