"""The line that shows progress, and the figures at its end."""

from __future__ import annotations

import pytest

from tiermq.cli.progress_line import ProgressLine, in_words


def test_the_figures_count_messages_bytes_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    now = [10.0]
    line = ProgressLine("sent", clock=lambda: now[0], shown=False)
    line.add(3, 300)
    now[0] = 12.0
    line.failed = 1
    figures = line.end()
    assert figures == {"messages": 3, "failed": 1, "bytes": 300, "seconds": 2.0, "messagesPerSecond": 1.5}
    assert in_words("sent", figures) == "sent 3 messages in 2.00 s (2/s, 0.0 MB/s), 1 failed"
    assert capsys.readouterr().err == ""


def test_a_terminal_sees_the_rate_of_the_last_moment(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    line = ProgressLine("received", clock=lambda: now[0], shown=True)
    line.add(1_000, 0)
    assert capsys.readouterr().err == ""
    now[0] = 1.0
    line.add(1_000, 0)
    assert capsys.readouterr().err == "\rreceived 2,000 messages, 2,000/s "
    line.end()
    assert capsys.readouterr().err.strip() == ""


def test_no_time_at_all_is_no_rate() -> None:
    assert ProgressLine("sent", clock=lambda: 0.0, shown=False).end()["messagesPerSecond"] == 0.0
