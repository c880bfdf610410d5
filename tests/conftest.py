"""What every test may ask for: a clock that stands still, Spark, S3, and hypothesis settings that suit the run."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import uuid
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

import skips
from examples import DEFAULT
from simulation.manual_clock import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.asked import Asked
    from servers.seaweedfs import SeaweedFS

# No deadlines: a shared machine may stop for longer than any honest limit. In CI examples are derived from the test's
# source instead of chance, so that a red build is red again when it is repeated.
settings.register_profile("default", deadline=None, max_examples=DEFAULT, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, print_blob=True)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=5_000)
gc.disable()  # Until the tests are collected: hardly anything that is made meanwhile goes before the end of the run.
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock at a fixed hour that moves only when the test moves it."""
    return ManualClock()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    """No credentials, and a server in the place of every metadata address."""
    from servers.asked import Asked

    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "")  # So that it is unset again, should the test's subject set it.
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    with Asked() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def _log_levels() -> dict[str, int]:
    """Those of our loggers, and of the root, that were set."""
    root = logging.getLogger()
    own = [each for name, each in root.manager.loggerDict.items() if name.partition(".")[0] == "tiermq"]
    return {each.name: each.level for each in (root, *own) if isinstance(each, logging.Logger) and each.level}


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """Levels and forms of lines are the process's: what a test sets must not hide lines from those after it."""
    before, forms = _log_levels(), [(each, each.formatter) for each in logging.getLogger().handlers]
    yield
    for name in (before | _log_levels()).keys() if before != _log_levels() else ():
        logging.getLogger(name).setLevel(before.get(name, logging.NOTSET))
    for handler, form in forms:
        handler.setFormatter(form)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test that asks for `spark` goes to the same worker of pytest-xdist: one JVM, not one per worker."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


def pytest_collection_finish() -> None:
    """Modules and tests live to the end of the run: the garbage collector need not walk over them in each test."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests that need one. Two cores, retries as in a cluster.

    C1 alone starts faster, and tests do not run long enough to earn C2.
    """
    from tiermq.spark.session import get_spark

    here = tmp_path_factory.mktemp("spark")
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    session = get_spark(
        "local[2]",
        app="tests",
        conf={
            "spark.driver.extraJavaOptions": options,
            "spark.driver.memory": "1g",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(here / "warehouse"),
            "spark.local.dir": str(here / "local"),
            "spark.sql.streaming.checkpointLocation": str(here / "checkpoints"),
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """A running S3 server with a bucket `history`, one for each process; tests take names that no other one uses.

    Where it cannot be had, the tests are skipped with the reason.
    """
    from servers.seaweedfs import SeaweedFS, Unavailable

    try:
        server = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    except Unavailable as reason:
        pytest.skip(f"no real S3 server here: {reason}")
    with server:
        server.create_bucket("history")
        yield server


@pytest.fixture
def url(seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> str:
    """That of an empty tier on the S3 server, whose credentials are in the environment."""
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://history/{uuid.uuid4().hex}"


WAITING = (
    "tests/cli/demo/test_demo_command.py",
    "tests/cli/test_acting_master.py",
    "tests/cli/test_controlled_brokers.py",
    "tests/cli/test_follow_command.py",
    "tests/cli/test_restore_tables.py",
    "tests/cli/test_secured_replicas.py",
    "tests/cli/test_serve_backup.py",
    "tests/cli/test_serve_read_only.py",
    "tests/cli/test_standby.py",
    "tests/crash/",
)
"""Tests that take ten seconds and more, and mostly wait: for leases, guards, and processes of their own."""


class WaitingEarly:
    """Spreads tests that wait over the first three quarters of a run: one that began last would be waited for alone,
    and several at once would leave the processors idle.
    """

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        waiting = [item for item in items if item.nodeid.startswith(WAITING)]
        others = iter([item for item in items if not item.nodeid.startswith(WAITING)])
        between = (len(items) - len(waiting)) * 3 // 4 // max(1, len(waiting))
        items[:] = [each for item in waiting for each in (item, *islice(others, between))]
        items += others


class LaneCounter:
    """Counts tests that the chosen lane leaves out; under xdist the workers collect, so they report their count."""

    def __init__(self) -> None:
        self.count = 0

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.count += len(items)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left_out"] = self.count

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.count = max(self.count, getattr(node, "workeroutput", {}).get("left_out", 0))


class FailureList:
    """Writes for dev.py which failures a second look alone may clear, and which are final at the first.

    Final: what proves that nothing is lost (marked crash), for a loss that was seen once is a loss; and a test whose
    process died.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failed: dict[str, list[str]] = {"again": [], "final": []}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            is_final = "crash" in report.keywords or report.when not in ("setup", "call", "teardown")
            kept = self._failed["final" if is_final else "again"]
            if report.nodeid not in kept:
                kept.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed["final"].append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        if getattr(self._config, "cache", None) is not None:  # None, or not there: `-p no:cacheprovider`.
            self._config.cache.set("tiermq/failed", self._failed)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LaneCounter(), "lane-counter")
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(WaitingEarly(), "waiting-early")
    if not hasattr(config, "workerinput"):  # Under xdist the workers' reports reach the process that started them.
        config.pluginmanager.register(FailureList(config), "failure-list")
        if os.environ.get(skips.VARIABLE):
            config.pluginmanager.register(skips.SkipsFail(), "skips-fail")
    if os.environ.get("TIERMQ_STALLS"):
        config.pluginmanager.register(importlib.import_module("stalls").asked_for(os.environ), "stalls")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count what did not run, by reason, so that a green line never hides a lane."""
    reasons = dict(skips.skipped(terminalreporter))
    counter = terminalreporter.config.pluginmanager.get_plugin("lane-counter")
    assert counter is not None
    left_out = counter.count
    if left_out:
        option = terminalreporter.config.option
        chosen = " and ".join(filter(None, [option.markexpr, option.keyword]))
        reasons[f"another lane: this run takes only {chosen!r}"] = left_out
    if reasons:
        terminalreporter.section("not run, by reason")
        for reason, count in sorted(reasons.items()):
            terminalreporter.line(f"{count:5d}  {reason}")
