"""WaveLog: what a continuous offload reports while it runs, as lines for a log.

its start        the brokers, the tier, the interval
a note           on how it was started; on a broker that another job has for a while
a wave           that copied something, or that failed: when it is tried again
a problem        once when it comes, once when it is over: a broker that is down, in use, a queue that is refused
a sign of life   after ten minutes without any other line
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from tiermq.clock import Clock
from tiermq.pipeline.job_report import counted_noun, size_text, span_text

QUIET_MAX_S = 600.0
_NUMBERS = re.compile(r"[0-9]+")


class WaveLog:
    """See the module. Belongs to the driver's thread."""

    def __init__(self, say: Callable[[str], object], clock: Clock, monotonic: Callable[[], float]) -> None:
        self._say = say
        self._clock = clock
        self._monotonic = monotonic
        self._said_s = monotonic()
        self._problems: dict[str, str] = {}
        self._waves = 0
        self._messages = 0

    def start(self, brokers: int, tier: str, trigger_s: float) -> None:
        self._line(f"copying {counted_noun(brokers, 'broker')} into {tier}, every {span_text(trigger_s)}")

    def note(self, text: str) -> None:
        """What the operator should know, and is no problem."""
        self._line(f"note: {text}")

    def wave(self, messages: int, size: int, problems: Sequence[str]) -> None:
        """A wave that ended, with everything that it could not copy."""
        self._waves += 1
        self._messages += messages
        if messages:
            self._line(f"copied {counted_noun(messages, 'message')}, {size_text(size)}")
        self._note(problems)
        if self._monotonic() - self._said_s >= QUIET_MAX_S:
            total = f"{counted_noun(self._waves, 'wave')}, {counted_noun(self._messages, 'message')} copied"
            self._line(f"running: {total} since the start, {counted_noun(len(self._problems), 'problem')} now")

    def failed(self, failures: int, pause_s: float, error: Exception) -> None:
        """A wave that failed as a whole."""
        self._waves += 1
        row = "" if failures == 1 else f" ({failures} in a row)"
        self._line(f"a wave failed{row}, the next one starts in {span_text(pause_s)}: {error}")

    def _note(self, problems: Sequence[str]) -> None:
        """Only what is new or over. The same problem with other numbers (a time that is left) is the same."""
        found = {_NUMBERS.sub("#", text): text for text in problems}
        for kind, text in found.items():
            if kind not in self._problems:
                self._line(f"problem: {text}")
        for kind, text in self._problems.items():
            if kind not in found:
                self._line(f"over: {text}")
        self._problems = found

    def _line(self, text: str) -> None:
        self._said_s = self._monotonic()
        at = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        self._say(f"{at:%Y-%m-%dT%H:%M:%SZ} {text}")
