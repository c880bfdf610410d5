"""ColdFlow: how many bytes of history each consumer group may read from the tier, as operators set it.

    2001   group=bytes, one per line: set a group's threshold      2003   what was read, and the thresholds
    2002   a group: remove its threshold

A window is WINDOW_MS long. A group that has read its threshold within the window waits for the next one; groups
without a threshold are not limited here (`cold_pace` throttles all of them together beside hot work). As in RocketMQ,
thresholds are kept in memory and end with the process.

Invariants: everything belongs to the loop's thread. A page is counted when it was given, so a group exceeds its
threshold by the pages that were under way at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiermq.broker.group.group_table import check_group_name
from tiermq.clock import Clock
from tiermq.errors import RequestRefused
from tiermq.remoting.access import ADMINISTRATOR, serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import encode_body
from tiermq.remoting.limits import check_count
from tiermq.settings import LONG_MAX

if TYPE_CHECKING:
    from tiermq.broker.broker_context import BrokerContext

WINDOW_MS = 5_000
FORGET_MS = 60_000
"""A group that read nothing from the tier for so long is no longer listed."""
THRESHOLDS_MAX = 10_000
NO_THRESHOLD = LONG_MAX


@dataclass(slots=True)
class _Reading:
    """What one group read from the tier."""

    bytes_in_window: int
    created_ms: int
    last_ms: int


class ColdFlow:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self.thresholds: dict[str, int] = {}
        self._clock = clock
        self._window_ms = clock.now_ms()
        self._groups: dict[str, _Reading] = {}

    def wait_s(self, group: str) -> float:
        """0: the group may read now. Otherwise the seconds to the end of the window."""
        threshold = self.thresholds.get(group)
        if threshold is None:
            return 0.0
        now_ms = self._turn()
        found = self._groups.get(group)
        if (0 if found is None else found.bytes_in_window) < threshold:
            return 0.0
        return max(1, self._window_ms + WINDOW_MS - now_ms) / 1000

    def gave(self, group: str, byte_count: int) -> None:
        """A page of the tier was given to a group."""
        if byte_count <= 0:
            return
        now_ms = self._turn()
        found = self._groups.get(group)
        if found is None:
            self._groups[group] = _Reading(byte_count, now_ms, now_ms)
        else:
            found.bytes_in_window += byte_count
            found.last_ms = now_ms

    def report(self) -> dict[str, Any]:
        """As RocketMQ reports it."""
        self._turn()
        return {
            "cgColdReadThreshold": NO_THRESHOLD,
            "configTable": dict(self.thresholds),
            "globalAcc": sum(each.bytes_in_window for each in self._groups.values()),
            "globalColdReadThreshold": NO_THRESHOLD,
            "runtimeTable": {
                group: {
                    "coldAcc": each.bytes_in_window,
                    "createTimeMills": each.created_ms,
                    "lastColdReadTimeMills": each.last_ms,
                }
                for group, each in self._groups.items()
            },
        }

    def _turn(self) -> int:
        """Begin a new window when the last one is over, or the clock was set back."""
        now_ms = self._clock.now_ms()
        if not 0 <= now_ms - self._window_ms < WINDOW_MS:
            self._window_ms = now_ms
            self._groups = {
                group: _Reading(0, each.created_ms, each.last_ms)
                for group, each in self._groups.items()
                if now_ms - each.last_ms < FORGET_MS
            }
        return now_ms


def _text(command: RemotingCommand) -> str:
    try:
        return bytes(command.body).decode()
    except UnicodeDecodeError as error:
        raise RequestRefused(f"expected text in the body: {error}", ResponseCode.INVALID_PARAMETER) from error


def _threshold(line: str) -> tuple[str, int]:
    group, _, value = (part.strip() for part in line.partition("="))
    check_group_name(group)
    if not (value.isascii() and value.isdigit() and 0 < int(value) <= LONG_MAX):
        raise RequestRefused(
            f"expected group=bytes per {WINDOW_MS // 1000} s, a number above 0, found {line[:80]!r}",
            ResponseCode.INVALID_PARAMETER,
        )
    return group, int(value)


def _thresholds_in(command: RemotingCommand) -> dict[str, int]:
    check_count("lines of thresholds", bytes(command.body).count(b"\n"), THRESHOLDS_MAX)  # Before any is made.
    lines = _text(command).splitlines()
    check_count("lines of thresholds", len(lines), THRESHOLDS_MAX)
    return dict(map(_threshold, filter(str.strip, lines)))


class ColdFlowProcessor:
    """The three requests."""

    def __init__(self, parts: BrokerContext) -> None:
        self._flow = parts.cold_flow

    @serves(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, access=ADMINISTRATOR, decode=_thresholds_in)
    def update(self, _connection: Connection, command: RemotingCommand, wanted: dict[str, int]) -> RemotingCommand:
        if len(self._flow.thresholds.keys() | wanted.keys()) > THRESHOLDS_MAX:
            raise RequestRefused(
                f"expected thresholds for at most {THRESHOLDS_MAX} groups; remove some first (2002)",
                ResponseCode.INVALID_PARAMETER,
            )
        self._flow.thresholds.update(wanted)
        return command.respond()

    @serves(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, access=ADMINISTRATOR)
    def remove(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self._flow.thresholds.pop(_text(command).strip(), None)
        return command.respond()

    @serves(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, access=ADMINISTRATOR)
    def info(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.respond(body=encode_body(self._flow.report()))
