"""Tables that fit a terminal, and the line of progress."""

from __future__ import annotations

import os

import pytest

from tiermq.cli import terminal
from tiermq.cli.terminal import DrawnLine, bar, table_lines

ROWS = [["a-topic-of-some-length", "7", "1,000"], ["b", "12", "3"]]


def test_figures_are_on_the_right_and_lines_end_where_they_end() -> None:
    assert list(table_lines(["topic", "queues", "messages"], ROWS, texts=1, width=None)) == [
        "topic                   queues  messages",
        "a-topic-of-some-length       7     1,000",
        "b                           12         3",
    ]
    assert list(table_lines(["a", "b"], [["x", ""]], texts=2, width=None)) == ["a  b", "x"]


def test_texts_fold_where_the_terminal_is_narrow_and_figures_are_never_cut() -> None:
    assert list(table_lines(["topic", "queues", "messages"], ROWS, texts=1, width=30)) == [
        "topic         queues  messages",
        "a-topic-of-s       7     1,000",
        "ome-length",
        "b                 12         3",
    ]
    assert max(map(len, table_lines(["topic", "queues", "messages"], ROWS, texts=1, width=1))) == 8 + 2 + 6 + 2 + 8


def test_the_widest_texts_fold_first() -> None:
    rows = [["x" * 40, "short", "1"]]
    assert list(table_lines(["a", "b", "c"], rows, texts=2, width=30)) == [
        "a                     b      c",
        "x" * 20 + "  short  1",
        "x" * 20,
    ]


def test_columns_are_counted_as_terminals_draw_them() -> None:
    lines = list(table_lines(["topic", "n"], [["订单", "1"], ["e\u0301t\u00e9", "2"]], texts=1, width=None))
    assert lines == ["topic  n", "订单   1", "e\u0301t\u00e9    2"]


def test_a_cell_cannot_change_the_terminal() -> None:
    [_, line] = table_lines(["body"], [["\x1b[2Jtwo\nlines"]], texts=1, width=None)
    assert line == r"\x1b[2Jtwo\nlines"


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("adds", [True, False])
def test_a_bar_is_drawn_only_where_somebody_watches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], watched: bool, adds: bool
) -> None:
    monkeypatch.setattr(terminal, "is_watched", lambda: watched)
    monkeypatch.setattr(terminal, "DRAW_S", -1.0)
    with bar("reading", in_bytes=True, adds=adds) as progress:
        progress(5_000, 20_000)
        progress(5_000 if adds else 10_000, 20_000)
    with bar("looking", quiet=True) as progress:
        progress(1, 2)
    found = capsys.readouterr()
    assert found.out == ""
    assert bool(found.err) is watched
    assert ("reading  " + "━" * 15 + "─" * 15 + "  10.0 kB of 20.0 kB" in found.err) is watched
    assert found.err.endswith("\r\x1b[2K") is watched


def test_the_line_has_the_time_that_is_left_and_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((30, 20)))
    now = [0.0]
    line = DrawnLine(clock=lambda: now[0])
    now[0] = 100.0
    line.write("x" * 40)
    assert capsys.readouterr().err == "\r\x1b[2K" + "x" * 29
    line.write("drawn just now")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((90, 20)))
    now[0] = 200.0
    line.progress("copying", 1, 20, in_bytes=False)
    assert capsys.readouterr().err.endswith("  1 of 20  1:03:20 left")
