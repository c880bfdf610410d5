"""Skipped tests, counted by reason; with TIERMQ_MUST_RUN=1 a skip fails the run, unless its reason is in `ALLOWED`.

A lane whose servers or packages are out of reach would be green without having run: nightly runs set the variable.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

VARIABLE = "TIERMQ_MUST_RUN"
ALLOWED = re.compile(
    "not applicable: |POP came with RocketMQ 5|RocketMQ 4.9 listens on every address|pictures are made with|"
    "only root may |needs root |power cuts: |mounting an image |tmpfs cannot be mounted "
)
"""Of tests that do not apply, or need what a user without root has not."""


def skipped(reporter: pytest.TerminalReporter) -> Counter[str]:
    """How many tests were skipped, by reason."""
    reasons: Counter[str] = Counter()
    for report in reporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[text.removeprefix("Skipped: ")] += 1
    return reasons


class SkipsFail:
    """Registered in the process that prints the summary, when the variable is set."""

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        assert reporter is not None
        wrong = [f"{count} x {text}" for text, count in skipped(reporter).items() if not ALLOWED.match(text)]
        if wrong and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        for line in wrong:
            reporter.write_line(f"\n{VARIABLE}: expected every test to run, found skipped: {line}", red=True)
