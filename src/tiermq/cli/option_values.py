"""Values of options: times (milliseconds since 1970, ISO 8601, or an age), retention times, sizes, stores."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tiermq.clock import SPAN_UNITS_MS, read_moment_ms
from tiermq.history.scan_values import StorePlace

F = TypeVar("F", bound=Callable[..., Any])
_HOURS = {"h": 1, "d": 24, "w": 24 * 7, "y": 24 * 365}
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


if TYPE_CHECKING:
    _OptionType = click.ParamType[int]
    _SpanType = click.ParamType[float]
else:
    _OptionType = _SpanType = click.ParamType  # Older versions are not generic.


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


class Span(_SpanType):
    """The type of a length of time, in seconds: `90s`, `2h`, `3d` or `2w`; a number is of the option's own unit."""

    name = "time"

    def __init__(self, unit: str = "s") -> None:
        self._unit = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([smhdwy]?)", str(value).strip())
        if found is None:
            self.fail(f"expected a length of time such as 90s, 15m, 2h, 3d or 2w, found {value!r}", param, ctx)
        return float(found[1]) * SPAN_UNITS_MS[found[2] or self._unit] / 1000


def topic_option(*names: str, **settings: Any) -> Callable[[F], F]:
    """`--topic`, completed with names of topics."""
    return click.option("--topic", *names, shell_complete=_topic_names, **settings)


def _topic_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    # Imported here: only a shell that completes needs the console's operations.
    from tiermq.cli.completion import topic_names

    return topic_names(ctx, parameter, incomplete)


class StoreDirectory(click.Path):
    """The type of a store directory. A URL is refused: as a path it would be a directory of that name."""

    _URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")

    def __init__(self, *, exists: bool = False) -> None:
        super().__init__(exists=exists, file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if self._URL.match(os.fspath(value)):
            self.fail(f"expected a store directory, found the URL {value}; a tier is given with --tier", param, ctx)
        return super().convert(value, param, ctx)


class NamedStore(StoreDirectory):
    """The type of `DIR`, `DIR=broker` or `DIR=cluster/broker`, of a directory that exists: a StorePlace."""

    def __init__(self) -> None:
        super().__init__(exists=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, StorePlace):
            return value
        path, cluster, broker = value, "", ""
        if "=" in value:
            # Imported here: it needs numpy, which lists of brokers do without.
            from tiermq.pipeline.scan.scan_spec import named_store

            path, cluster, broker = named_store(value)
        return StorePlace(str(super().convert(path, param, ctx)), cluster, broker)


def parse_hours(option: str, text: str, words: str = "") -> int:
    """`72h`, `30d`, `4w` or `2y` in hours; `words` are other values that the option takes. Raises UsageError."""
    found = re.fullmatch(r"(\d+)([hdwy])", text.strip().lower())
    if found is None or int(found[1]) < 1:
        raise click.UsageError(f"{option} is a time such as 72h, 30d, 8w or 2y{words}, found {text!r}")
    return int(found[1]) * _HOURS[found[2]]


def parse_bytes(option: str, text: str, words: str = "") -> int:
    """`10G`, `500M` or a number, in bytes; `words` as above. Raises UsageError."""
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", text.strip().lower())
    if found is None or int(found[1]) < 1:
        raise click.UsageError(f"{option} is a size such as 500M or 10G{words}, found {text!r}")
    return int(found[1]) * _BYTES[found[2]]
