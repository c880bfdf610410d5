"""RetryPolicy: how long consumers of a group wait before a message that failed is delivered again.

    {"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,5000]}}                                    one by one, ms
    {"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5000,"max":7200000,"multiplier":2}}

The values are RocketMQ's, as its tools send them in a group's configuration. What is left out has RocketMQ's default.
gRPC consumers get the policy with their settings, and wait by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiermq.errors import RequestRefused
from tiermq.remoting.json_dialect import as_int, list_in, object_in, text_in

CUSTOMIZED, EXPONENTIAL = "CUSTOMIZED", "EXPONENTIAL"
STEPS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
STEPS_MAX = 64
INVISIBLE_MS_MOST = 12 * 3_600_000
"""The longest time for which a message may be invisible: a longer wait would be refused, attempt by attempt."""
MULTIPLIER_MAX = 1_000


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """See the module. Steps, or a first wait that grows by a factor up to the longest one."""

    steps_ms: tuple[int, ...] = tuple(each * 1_000 for each in STEPS_S)
    is_exponential: bool = False
    initial_ms: int = 5_000
    max_ms: int = 7_200_000
    multiplier: int = 2

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RetryPolicy:
        """Raises RequestRefused."""
        kind = text_in(value.get("type"), "groupRetryPolicy.type") or CUSTOMIZED
        if kind not in (CUSTOMIZED, EXPONENTIAL):
            raise RequestRefused(f"groupRetryPolicy.type: expected {CUSTOMIZED} or {EXPONENTIAL}, found {kind[:40]!r}")
        default = cls()
        if kind == CUSTOMIZED:
            table = _table(value, "customizedRetryPolicy")
            found = [_wait_ms("customizedRetryPolicy.next", each, 0) for each in list_in(table, "next")]
            if len(found) > STEPS_MAX:
                raise RequestRefused(
                    f"customizedRetryPolicy.next: expected at most {STEPS_MAX} waits, found {len(found)}"
                )
            return cls(steps_ms=tuple(found) or default.steps_ms)
        table = _table(value, "exponentialRetryPolicy")
        initial_ms = _wait_ms("exponentialRetryPolicy.initial", table.get("initial"), default.initial_ms)
        max_ms = _wait_ms("exponentialRetryPolicy.max", table.get("max"), default.max_ms)
        multiplier = as_int(table.get("multiplier"), default.multiplier)
        if initial_ms > max_ms:
            raise RequestRefused(
                f"exponentialRetryPolicy: expected initial to be at most max, found {initial_ms} and {max_ms}"
            )
        if not 1 <= multiplier <= MULTIPLIER_MAX:
            raise RequestRefused(
                f"exponentialRetryPolicy.multiplier: expected 1 to {MULTIPLIER_MAX}, found {multiplier}"
            )
        return cls(is_exponential=True, initial_ms=initial_ms, max_ms=max_ms, multiplier=multiplier)


def _table(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name)
    return {} if found is None else object_in(found, name)


def _wait_ms(name: str, value: object, default: int) -> int:
    wait_ms = as_int(value, default)
    if not 0 < wait_ms <= INVISIBLE_MS_MOST:
        raise RequestRefused(f"{name}: expected 1 to {INVISIBLE_MS_MOST} ms, found {str(value)[:40]!r}")
    return wait_ms
