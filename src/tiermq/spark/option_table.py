"""A table of options: names, kinds, defaults, and how a set of given options is read against it.

Names are found whatever their case, since Spark changes it on the way. An option that the table does not have is an
error that names the nearest one: an option that is silently ignored is a wrong result that nobody notices.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiermq.errors import BadOption


class Use(enum.StrEnum):
    """What is being done with the options."""

    BATCH = "batch reads"
    STREAM = "streams"
    WRITE = "writes"


READS = frozenset({Use.BATCH, Use.STREAM})


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `kind` is how a document names its values, `field` what it is called in Python."""

    name: str
    field: str
    kind: str
    read: Callable[[str], Any]
    default: Any
    doc: str
    aliases: tuple[str, ...] = ()
    uses: frozenset[Use] = READS

    def value(self, text: str, said: str) -> Any:
        """The value of a text. Raises BadOption, which names the option as it was said."""
        try:
            return self.read(text)
        except ValueError as error:
            raise BadOption(f"option {said}: expected {error}, found {text!r}") from None


def read_given(
    table: Sequence[Option], given: Mapping[str, str], use: Use | None, hints: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Every field of the table with its given or default value. `hints`: what to say of options of other programs.

    Without a `use`, options of any use are allowed. Raises BadOption.
    """
    by_name = {name.lower(): option for option in table for name in (option.name, *option.aliases)}
    values: dict[str, Any] = {}
    said: dict[str, str] = {}
    for name, text in given.items():
        option = by_name.get(name.lower())
        if option is None:
            raise _unknown(name, table, hints or {})
        shown = option.name if name.lower() == option.name.lower() else f"{name} (that is, {option.name})"
        if use is not None and use not in option.uses:
            raise BadOption(f"option {shown} is for {' and '.join(sorted(option.uses))} only: leave it out here")
        if option.field in said:
            raise BadOption(f"options {said[option.field]} and {name} mean the same thing: give one of them")
        said[option.field] = name
        values[option.field] = option.value(text, shown)
    return {option.field: values.get(option.field, option.default) for option in table}


def markdown(table: Sequence[Option]) -> str:
    """The table for a document."""
    lines = ["| option | value | default | meaning |", "|---|---|---|---|"]
    for option in table:
        names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
        default = "" if option.default in (None, ()) else f"`{_shown_default(option.default)}`"
        note = "" if len(option.uses) != 1 or option.uses == {Use.WRITE} else f" Only {next(iter(option.uses))}."
        lines.append(f"| {names} | {option.kind} | {default} | {option.doc}{note} |")
    return "\n".join(lines) + "\n"


def _shown_default(default: Any) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def _unknown(name: str, table: Sequence[Option], hints: Mapping[str, str]) -> BadOption:
    hint = {key.lower(): text for key, text in hints.items()}.get(name.lower())
    if hint is not None:
        return BadOption(f"there is no option {name}: {hint}")
    names = {each.lower(): each for option in table for each in (option.name, *option.aliases)}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    if near:
        return BadOption(f"there is no option {name}; did you mean {names[near[0]]}?")
    known = ", ".join(option.name for option in table)
    return BadOption(f"there is no option {name}; there are {known}")
