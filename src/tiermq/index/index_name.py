"""Names of index files: the local time of their creation, yyyyMMddHHmmssSSS, in 17 ASCII digits.

Files are read in the order of their names, so a new name must be greater than all before it, also when two files
are made within one millisecond or the local clock was set back (it is, every autumn).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_NAME = re.compile(r"[0-9]{17}")


def is_index_name(name: str) -> bool:
    """Whether a file of the index directory is an index file."""
    return _NAME.fullmatch(name) is not None


def index_name(now_ms: int) -> str:
    """The name for a file made at `now_ms`, in the machine's time zone."""
    return _format(datetime.fromtimestamp(now_ms // 1000, tz=UTC).astimezone(), now_ms % 1000)


def next_index_name(now_ms: int, last_name: str | None) -> str:
    """The name for a file made at `now_ms` after the file `last_name`: one millisecond later if the clock says less."""
    name = index_name(now_ms)
    if last_name is None or name > last_name:
        return name
    try:
        # The zone does not matter: this only counts one millisecond on, digit by digit.
        last = datetime.strptime(last_name[:14] + "+0000", "%Y%m%d%H%M%S%z")
        later = last + timedelta(milliseconds=int(last_name[14:]) + 1)
        return _format(later, later.microsecond // 1000)
    except (ValueError, OverflowError):  # Digits, but no date: somebody else chose that name.
        return f"{int(last_name) + 1:017d}"


def _format(moment: datetime, milliseconds: int) -> str:
    return (
        f"{moment.year:04d}{moment.month:02d}{moment.day:02d}"
        f"{moment.hour:02d}{moment.minute:02d}{moment.second:02d}{milliseconds:03d}"
    )
