"""Moments on a command line: milliseconds since 1970, ISO 8601 with its zone, or how long ago."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
EXPECTED = "milliseconds since 1970, a time such as 2026-01-31T12:00:00Z, or an age such as 90s, 15m, 2h or 3d"


def read_moment_ms(text: str, now_ms: int) -> int:
    """The moment in ms since 1970. Raises ValueError, saying what was expected."""
    text = text.strip()
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    if age := re.fullmatch(r"([0-9]+)([smhd])", text):
        return now_ms - int(age[1]) * UNITS_MS[age[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"expected {EXPECTED}, found {text!r}") from None
    if moment.tzinfo is None:
        raise ValueError(f"expected a time with its zone, such as {text}Z or {text}+02:00, found none")
    return round(moment.timestamp() * 1000)


if TYPE_CHECKING:
    _OptionType = click.ParamType[int]
else:
    _OptionType = click.ParamType  # Older ones are not generic.


class Moment(_OptionType):
    """The type of an option."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return read_moment_ms(value, time.time_ns() // 1_000_000)
        except ValueError as error:
            self.fail(str(error), param, ctx)
