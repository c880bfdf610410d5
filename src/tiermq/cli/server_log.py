"""The log of a server command: --log-level, --log-format, and for single modules --log-level tiermq.tier=DEBUG."""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from tiermq.errors import BadConfig
from tiermq.log_levels import parse_log_levels, set_log_levels

F = TypeVar("F", bound=Callable[..., Any])
TEXT_FORMAT = "%(levelname)s %(name)s: %(message)s"


class TextLines(logging.Formatter):
    """Lines for people: times of this machine's zone, to the millisecond, with their distance from UTC."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, tz=UTC).astimezone()
        return f"{moment.isoformat(' ', timespec='milliseconds')} {super().format(record)}"


class JsonLines(logging.Formatter):
    """One JSON object for each line of the log; times are UTC, to the millisecond."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds")
        values = {
            "time": moment,
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return json.dumps(values, ensure_ascii=False)


def log_options(command: F) -> F:
    """Add the options to a command, and start the log before it runs."""

    @functools.wraps(command)
    def with_log(*arguments: Any, log_levels: tuple[str, ...], log_format: str, verbose: bool, **others: Any) -> Any:
        start_log(log_levels, log_format, is_verbose=verbose)
        return command(*arguments, **others)

    made: Any = click.option(
        "--log-format", type=click.Choice(["text", "json"]), default="text", help="Lines of the log: text, json [text]."
    )(with_log)
    made = click.option("-v", "--verbose", is_flag=True, help="Log at INFO level, not only warnings.")(made)
    decorated: F = click.option(
        "--log-level",
        "log_levels",
        multiple=True,
        metavar="LEVEL",
        help="Log from this level on [WARNING]; or LOGGER=LEVEL, such as tiermq.tier=DEBUG; repeatable.",
    )(made)
    return decorated


def start_log(levels: Sequence[str], log_format: str, *, is_verbose: bool = False) -> None:
    """Log to standard error. Raises UsageError for an unknown level."""
    try:
        wanted = parse_log_levels(levels)
    except BadConfig as error:
        raise click.UsageError(f"--log-level: {error}") from error
    logging.basicConfig(level="INFO" if is_verbose else "WARNING", stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines() if log_format == "json" else TextLines(TEXT_FORMAT))
    set_log_levels(wanted)
