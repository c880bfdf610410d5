"""The catalogue of operations: what an operator can do, once for the pages, the HTTP API and the command line.

    @operation("topic.list", "The topics, a page of them with their figures.", Parameter("search", "Part of a name."))
    def list_topics(visit: Visit, search: str | None, ...) -> dict[str, Any]: ...

    run("topic.list", visit, {"search": "ord"})     # checked, then called; the result is JSON

Invariants: names, parameters, checks and results are the same wherever an operation is called from; text becomes
values here and nowhere else. An operation that changes something is refused to a visit that may not change.
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tiermq.clock import SystemClock, read_moment_ms
from tiermq.console.sources import Visit
from tiermq.errors import BadRequest, ChangeRefused
from tiermq.settings import did_you_mean

Result = dict[str, Any]
MOMENT_MAX_MS = 253_402_300_799_999
"""The end of the year 9999."""
MOMENT_CHARACTERS = 64
NUMBER_MAX = (1 << 63) - 1
MODULES = {
    "overview": "overview",
    "topic": "topics",
    "group": "groups",
    "producer": "groups",
    "message": "messages",
    "tier": "tier",
    "sql": "sql",
    "settings": "settings",
    "delayed": "waiting",
    "dlq": "waiting",
    "transaction": "waiting",
    "history": "history",
}
"""Of `tiermq.console.operations`, by the first word of a name: each registers its operations when it is imported."""


class Kind(enum.Enum):
    """What a parameter is; the value is its type in OpenAPI."""

    TEXT = "string"
    WHOLE = "integer"
    DECIMAL = "number"
    FLAG = "boolean"
    MOMENT = "time"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. `default` None: left out, the operation gets None."""

    name: str
    help: str
    kind: Kind = Kind.TEXT
    is_required: bool = False
    default: object = None
    low: int = 0
    high: int = NUMBER_MAX
    choices: tuple[str, ...] = ()

    def parse(self, value: object, now_ms: int) -> object:
        """The value of the parameter. Raises BadRequest."""
        text = str(value).strip()
        if self.kind is Kind.FLAG:
            words = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False, "": False}
            if text.lower() not in words:
                raise BadRequest(f"{self.name}: expected true or false, found {text[:40]!r}")
            return words[text.lower()]
        if self.kind is Kind.MOMENT:
            try:
                moment_ms = read_moment_ms(text[:MOMENT_CHARACTERS], now_ms)
            except (ValueError, OverflowError) as error:
                raise BadRequest(f"{self.name}: {error}") from error
            if not 0 <= moment_ms <= MOMENT_MAX_MS:
                raise BadRequest(f"{self.name}: expected a time from 1970 to 9999, found {text[:40]!r}")
            return moment_ms
        if self.kind is Kind.TEXT:
            if self.choices and text not in self.choices:
                raise BadRequest(f"{self.name}: expected one of {', '.join(self.choices)}, found {text[:40]!r}")
            return str(value)
        return self._number(text)

    def _number(self, text: str) -> int | float:
        try:
            number = int(text) if self.kind is Kind.WHOLE else float(text)
        except ValueError as error:
            raise BadRequest(f"{self.name}: expected a number, found {text[:40]!r}") from error
        if not self.low <= number <= self.high:
            raise BadRequest(f"{self.name}: expected {self.low} to {self.high}, found {text[:40]}")
        return number


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; `call` gets the visit and a keyword for each parameter."""

    name: str
    summary: str
    call: Callable[..., Result]
    parameters: tuple[Parameter, ...] = ()
    changes: bool = False
    starts: bool = False
    """Reads only, and costs so much that a link of another site must not start it: POST, with a token."""

    @property
    def posts(self) -> bool:
        return self.changes or self.starts

    def arguments(self, values: Mapping[str, object], now_ms: int) -> dict[str, object]:
        """The keywords of a call. An empty text counts as left out. Raises BadRequest."""
        known = {each.name: each for each in self.parameters}
        for name in values:
            if name not in known:
                hint = did_you_mean(name, known) or f"expected one of {', '.join(known) or 'none'}"
                raise BadRequest(f"{self.name}: unknown parameter {name[:40]!r}: {hint}")
        found: dict[str, object] = {}
        for name, parameter in known.items():
            value = values.get(name)
            if value is None or (value == "" and name != "body"):
                if parameter.is_required:
                    raise BadRequest(f"{self.name}: expected {name} ({parameter.help.rstrip('.')}), found none")
                found[name] = parameter.default
            else:
                found[name] = parameter.parse(value, now_ms)
        return found


_operations: dict[str, Operation] = {}


def operation(
    name: str, summary: str, *parameters: Parameter, changes: bool = False, starts: bool = False
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Add a function to the catalogue."""

    def registered(call: Callable[..., Result]) -> Callable[..., Result]:
        if name in _operations:
            raise ValueError(f"operation {name} exists already")
        _operations[name] = Operation(name, summary, call, parameters, changes, starts)
        return call

    return registered


def operations() -> Mapping[str, Operation]:
    """All of them, by name."""
    for module in MODULES.values():
        importlib.import_module(f"tiermq.console.operations.{module}")
    return _operations


def found_operation(name: str) -> Operation:
    """The operation of a name; imports only its own module, since others need more libraries. Raises BadRequest."""
    module = MODULES.get(name.partition(".")[0])
    if module is not None:
        importlib.import_module(f"tiermq.console.operations.{module}")
    if name not in _operations:
        hint = did_you_mean(name, operations()) or "see /api"
        raise BadRequest(f"expected an operation, found {name[:40]!r}: {hint}")
    return _operations[name]


def run(name: str, visit: Visit, values: Mapping[str, object] | None = None) -> Result:
    """Check and call an operation. Raises BadRequest, ChangeRefused, and what the operation raises.

    Where a server did not answer, the result has `problems`, which name it.
    """
    found = found_operation(name)
    keywords = found.arguments(values or {}, SystemClock().now_ms())
    if found.changes and not visit.may_change:
        raise ChangeRefused(f"{name} changes something, and this console only reads: start it with --allow-changes")
    if found.posts:
        visit.audit(name, keywords)
    result = found.call(visit, **keywords)
    problems = visit.problems()
    return {**result, "problems": [*result.get("problems", ()), *problems]} if problems else result
