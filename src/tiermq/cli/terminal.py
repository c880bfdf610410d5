"""What commands draw: tables that fit the terminal, and a progress line on stderr that is gone at the end.

A table's first columns are texts, which fold where the terminal is narrow; the others are figures, on the right, and
never cut. Cells are measured as terminals draw them: Chinese, Japanese and Korean characters take two columns.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

TEXT_MIN = 8
"""A folded column is at least this wide."""
GAP = 2
DRAW_S = 0.1
"""The progress line is drawn no more often than this."""
BAR_WIDTH = 30
_CLEAR = "\r\x1b[2K"


def is_watched() -> bool:
    """Whether a person sees the progress line."""
    return sys.stderr.isatty()


def terminal_width() -> int | None:
    """The columns of the terminal; None where stdout is none, and lines may be of any length."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1) -> None:
    """Print a table whose first `texts` columns are texts."""
    for line in table_lines(columns, rows, texts=texts, width=terminal_width()):
        click.echo(line)


def table_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int, width: int | None
) -> Iterator[str]:
    """The header and the rows of a table, in lines of at most `width` columns as far as its texts can fold."""
    shown = [[_printable(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(map(_columns, cells)) for cells in zip(*shown, strict=True)]
    excess = 0 if width is None else sum(widths) + GAP * (len(widths) - 1) - width
    while excess > 0 and (widest := max(widths[:texts], default=0)) > TEXT_MIN:
        widths[widths.index(widest)] -= 1
        excess -= 1
    for row in shown:
        folded = [
            _folded(cell, widths[at]) if at < texts else [" " * (widths[at] - _columns(cell)) + cell]
            for at, cell in enumerate(row)
        ]
        for number in range(max(map(len, folded))):
            parts = (lines[number] if number < len(lines) else "" for lines in folded)
            padded = (part + " " * (each - _columns(part)) for part, each in zip(parts, widths, strict=True))
            yield (" " * GAP).join(padded).rstrip()


def _printable(cell: str) -> str:
    """Without what moves a terminal's cursor or changes its colours."""
    if cell.isprintable():
        return cell
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cell)


def _columns(text: str) -> int:
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _folded(text: str, width: int) -> list[str]:
    lines, line, used = [], "", 0
    for character in text:
        wide = _width(character)
        if used + wide > width:
            lines.append(line)
            line, used = "", 0
        line, used = line + character, used + wide
    return [*lines, line]


class DrawnLine:
    """One line on stderr, drawn again and again. Changed by one thread at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin_s = clock()
        self._drawn_s = -DRAW_S

    def write(self, text: str) -> None:
        """Draw the text in place of the one before, unless that was just now."""
        now_s = self._clock()
        if now_s - self._drawn_s < DRAW_S:
            return
        self._drawn_s = now_s
        room = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"{_CLEAR}{_folded(text, room)[0]}")
        sys.stderr.flush()

    def progress(self, text: str, done: int, total: int, *, in_bytes: bool) -> None:
        """Draw what is done as a bar, with amounts and the time that is left."""
        filled = BAR_WIDTH * min(done, total) // total if total > 0 else 0
        amounts = f"{size_words(done)} of {size_words(total)}" if in_bytes else f"{done:,} of {total:,}"
        parts = [text, "━" * filled + "─" * (BAR_WIDTH - filled), amounts]
        if 0 < done < total:
            left_s = int((self._clock() - self._begin_s) * (total - done) / done)
            parts.append(f"{left_s // 3600}:{left_s // 60 % 60:02}:{left_s % 60:02} left")
        self.write("  ".join(parts))


@contextmanager
def drawn_line(*, quiet: bool = False) -> Iterator[DrawnLine | None]:
    """A line to draw progress on, taken away at the end; None where stderr is no terminal."""
    if quiet or not is_watched():
        yield None
        return
    try:
        yield DrawnLine()
    finally:
        sys.stderr.write(_CLEAR)
        sys.stderr.flush()


@contextmanager
def bar(
    text: str, *, in_bytes: bool = False, adds: bool = False, quiet: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """A callback (done so far, total) that draws a progress bar on a terminal; with `adds`, (done since the last call,
    total). Any thread may call.
    """
    with drawn_line(quiet=quiet) as line:
        if line is None:
            yield lambda _done, _total: None
            return
        lock = threading.Lock()
        so_far = 0

        def show(done: int, total: int) -> None:
            nonlocal so_far
            with lock:
                so_far = so_far + done if adds else done
                line.progress(text, so_far, total, in_bytes=in_bytes)

        yield show


def size_words(size_bytes: int) -> str:
    """At most eight characters."""
    size, units = float(size_bytes), iter(("B", "kB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while size >= 999.95 and unit != "PB":
        size, unit = size / 1000, next(units)
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
