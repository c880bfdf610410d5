"""Levels of the log, for all of it and for single modules: `WARNING,tiermq.tier=DEBUG`. Set at the start and later."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping

from tiermq.errors import BadConfig

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
NAME_CHARACTERS_MAX = 200
NAME_DOTS_MAX = 20
"""Of a logger: `logging` keeps an object for every beginning of a name, until the process ends."""
LEVELS_TEXT_MAX = 4_096
PACKAGES = (
    "asyncio", "concurrent", "deltalake", "duckdb", "hpack", "opentelemetry", "py4j", "pyarrow", "pyiceberg", "pyspark",
    "requests", "starlette", "tiermq", "urllib3", "uvicorn",
)  # fmt: skip
"""Whose loggers a setting can name. An option of the command line can name any."""
_lock = threading.Lock()
_before: dict[str, int] = {}
"""The levels that loggers had before `change_log_levels` set them; '' is the root."""


def parse_log_levels(texts: Iterable[str]) -> dict[str, str]:
    """Level by logger, '' for the root. Each text is LEVEL or LOGGER=LEVEL. Raises BadConfig."""
    found = {}
    for text in texts:
        name, equals, level = text.strip().rpartition("=")
        if level.upper() not in LEVELS or bool(equals) != bool(name.strip()):
            raise BadConfig(f"expected one of {', '.join(LEVELS)}, or LOGGER=LEVEL, found {text[:80]!r}")
        name = name.strip()
        if len(name) > NAME_CHARACTERS_MAX or name.count(".") > NAME_DOTS_MAX:
            raise BadConfig(
                f"expected a logger of at most {NAME_CHARACTERS_MAX} characters and {NAME_DOTS_MAX} dots, "
                f"found {name[:80]!r}…"
            )
        found[name] = level.upper()
    return found


def levels_in(text: str) -> dict[str, str]:
    """The same of a setting, whose levels are separated by commas. Raises BadConfig."""
    if len(text) > LEVELS_TEXT_MAX:
        raise BadConfig(f"logLevels: expected at most {LEVELS_TEXT_MAX} characters, found {len(text)}")
    found = parse_log_levels(each for each in text.split(",") if each.strip())
    for name in found:
        if name and name.partition(".")[0] not in PACKAGES:
            raise BadConfig(f"logLevels: expected loggers of {', '.join(PACKAGES)}, found {name[:80]!r}")
    return found


def set_log_levels(levels: Mapping[str, str]) -> None:
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)


def change_log_levels(text: str) -> None:
    """Set these levels in a running process, and take back those of the call before. Raises BadConfig."""
    wanted = levels_in(text)
    with _lock:
        for name, level in _before.items():
            logging.getLogger(name or None).setLevel(level)
        _before.clear()
        _before.update({name: logging.getLogger(name or None).level for name in wanted})
        set_log_levels(wanted)
