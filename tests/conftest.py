"""What every test may ask for: a clock that stands still, and hypothesis settings that suit the place of the run."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tiermq.clock import ManualClock

# No deadlines: a shared machine may stop for longer than any honest limit. In CI examples are derived from the test's
# source instead of chance, so that a red build is red again when it is repeated.
settings.register_profile("default", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, print_blob=True)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock at a fixed hour that moves only when the test moves it."""
    return ManualClock()


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
    """Tells dev.py which failures a second look alone may clear, and which are final at the first.

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
        if self._config.cache is not None:
            self._config.cache.set("tiermq/failed", self._failed)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LaneCounter(), "lane-counter")
    if not hasattr(config, "workerinput"):  # Under xdist the workers' reports reach the process that started them.
        config.pluginmanager.register(FailureList(config), "failure-list")
    if os.environ.get("TIERMQ_STALLS"):
        config.pluginmanager.register(importlib.import_module("stalls").asked_for(os.environ), "stalls")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count what did not run, by reason, so that a green line never hides a lane."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = text.removeprefix("Skipped: ")
        reasons[reason] = reasons.get(reason, 0) + 1
    left_out = terminalreporter.config.pluginmanager.get_plugin("lane-counter").count
    if left_out:
        option = terminalreporter.config.option
        chosen = " and ".join(filter(None, [option.markexpr, option.keyword]))
        reasons[f"another lane: this run takes only {chosen!r}"] = left_out
    if reasons:
        terminalreporter.section("not run, by reason")
        for reason, count in sorted(reasons.items()):
            terminalreporter.line(f"{count:5d}  {reason}")
