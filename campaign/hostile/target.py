"""What is fuzzed: seeds that are sound, a way to try an input, and what it may come to.

`attempt` gives the outcome of an input in a few words: a sound value, or an error that is documented. Any other
exception is a finding, and so is a disagreement of the two kernels. Outcomes are classes: numbers, quoted pieces and
places are left out, so that two inputs that took the same way have the same outcome.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tiermq.kernel import pure

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|b'[^']*'")
_NUMBERS = re.compile(r"-?(0x)?[0-9][0-9a-fA-F.]*")
OUTCOME_CHARACTERS_MAX = 90


class Disagreement(AssertionError):
    """The two forms of the kernel, or a fast and a general way, do not say the same."""


@dataclass(frozen=True, slots=True)
class Target:
    """See the module. `mend` makes checksums right again, so that injuries reach what lies behind them."""

    name: str
    seeds: Callable[[], list[bytes]]
    attempt: Callable[[bytes], str]
    words: tuple[bytes, ...] = ()
    mend: Callable[[bytes], bytes] | None = None


def compiled_kernel() -> ModuleType | None:
    """The compiled twin, where it was built."""
    try:
        return importlib.import_module("tiermq.kernel.compiled")
    except ModuleNotFoundError as error:
        if error.name != "tiermq.kernel.compiled":
            raise
        return None


COMPILED = compiled_kernel()
TWINS: tuple[ModuleType, ...] = (pure,) if COMPILED is None else (pure, COMPILED)


def outcome_of(error: BaseException) -> str:
    """The class of a documented error."""
    text = str(error).splitlines()[0] if str(error) else ""
    text = _NUMBERS.sub("#", _QUOTED.sub("'…'", text))
    return f"{type(error).__name__}: {text}"[:OUTCOME_CHARACTERS_MAX]


def documented(decode: Callable[[], Any], *errors: type[Exception]) -> tuple[Any, str]:
    """(what `decode` gives, "") or (None, the class of the documented error that it raises)."""
    try:
        return decode(), ""
    except errors as error:
        return None, outcome_of(error)


def by_both(what: str, ask: Callable[[ModuleType], Any], *errors: type[Exception]) -> Any:
    """What both twins say, an error by its type; raises Disagreement when they differ."""
    said = []
    for twin in TWINS:
        try:
            said.append(ask(twin))
        except errors as error:
            said.append(type(error).__name__)
    if any(each != said[0] for each in said):
        raise Disagreement(f"{what}: pure says {said[0]!r:.300}, compiled says {said[1]!r:.300}")
    return said[0]
