"""ProgressLine: how much was done and how fast, on one line of a terminal, and as figures at the end.

Nothing is drawn where the standard error is no terminal: then only the last word counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import click

EVERY_S = 0.5


class ProgressLine:
    """Counts messages and bytes. Used by one thread."""

    def __init__(self, verb: str, *, clock: Callable[[], float] = time.monotonic, shown: bool | None = None) -> None:
        self.messages = 0
        self.bytes = 0
        self.failed = 0
        self._verb = verb
        self._clock = clock
        self._began = clock()
        self._drawn = (self._began, 0)
        self._shown = sys.stderr.isatty() if shown is None else shown

    def add(self, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
        if self._shown:
            now = self._clock()
            at, before = self._drawn
            if now - at >= EVERY_S:
                rate = (self.messages - before) / (now - at)
                self._drawn = now, self.messages
                click.echo(f"\r{self._verb} {self.messages:,} messages, {rate:,.0f}/s ", nl=False, err=True)

    def end(self) -> dict[str, float | int]:
        """Close the line; the figures of the whole."""
        seconds = self._clock() - self._began
        if self._shown:
            click.echo("\r" + " " * 60 + "\r", nl=False, err=True)
        return {
            "messages": self.messages,
            "failed": self.failed,
            "bytes": self.bytes,
            "seconds": round(seconds, 3),
            "messagesPerSecond": round(self.messages / seconds, 1) if seconds > 0 else 0.0,
        }


def in_words(verb: str, figures: dict[str, float | int]) -> str:
    """The figures as a sentence."""
    failed = f", {figures['failed']:,} failed" if figures["failed"] else ""
    rate = f"{figures['messagesPerSecond']:,.0f}/s, {figures['bytes'] / 1e6 / max(figures['seconds'], 1e-3):,.1f} MB/s"
    what = "message" if figures["messages"] == 1 else "messages"
    return f"{verb} {figures['messages']:,} {what} in {figures['seconds']:,.2f} s ({rate}){failed}"
