"""Settings as values: one name in two spellings, a type, bounds, and how they are read from text.

One name in three spellings: `file_reserved_time` in Python and TOML, `fileReservedTime` in a `broker.conf` (a Java
properties file), and either of them in TOML. A value may always be given as text.

A configuration is a frozen dataclass that derives from `Configuration`; its fields are its settings. Invariants: one
that exists is valid (everything is checked when it is made, nothing afterwards); it never changes.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

from tiermq.errors import BadConfig

NUMBER_BITS_MAX = 64

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


def whole(default: int, low: int = 0, high: int = INT_MAX) -> int:
    """A field holding a whole number within [low, high]."""
    return dataclasses.field(default=default, metadata={"low": low, "high": high})


class Setting(NamedTuple):
    """One setting: its two names, its type and its bounds."""

    name: str
    property_name: str
    default: Any
    low: int
    high: int

    def parse(self, value: object) -> object:
        """The value in the setting's own type, from that type or from text. Raises BadConfig."""
        kind = type(self.default)
        if isinstance(value, str) and kind is not str:
            value = self._from_text(value.strip(), kind)
        if kind is float and type(value) is int:
            value = float(value)
        if issubclass(kind, enum.IntEnum) and type(value) is int:
            value = self._from_number(value, kind)
        if type(value) is not kind:  # Not isinstance: True is no size.
            raise BadConfig(f"{self.name} is {_KIND_NAMES.get(kind, 'one of its names')}, found {value!r}")
        if isinstance(value, int) and not self.low <= value <= self.high:
            raise BadConfig(f"{self.name} lies within {self.low} and {self.high}, found {value}")
        return value

    def _from_text(self, text: str, kind: type) -> object:
        if issubclass(kind, enum.IntEnum) and re.fullmatch(r"[0-9]+", text):
            return int(text)  # Of a number that has a name, either may be written.
        if issubclass(kind, enum.Enum):
            if text not in kind.__members__:
                raise BadConfig(f"{self.name} is one of {', '.join(kind.__members__)}, found {text!r}")
            return kind[text]
        if kind is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind is int and re.fullmatch(r"[+-]?[0-9]{1,40}", text):
            return int(text)
        if kind is float and re.fullmatch(r"[+-]?[0-9]*\.?[0-9]+", text):
            return float(text)
        return text  # Of the wrong type: the caller reports it.

    def _from_number(self, number: int, kind: type[enum.IntEnum]) -> enum.IntEnum:
        if number not in {int(member) for member in kind}:
            known = ", ".join(f"{member.name} ({member.value})" for member in kind)
            raise BadConfig(f"{self.name} is one of {known}, found {number}")
        return kind(number)

    def render(self, value: object) -> str:
        if isinstance(value, enum.Enum):
            return value.name
        return str(value).lower() if isinstance(value, bool) else str(value)


_KIND_NAMES = {int: "a whole number", bool: "true or false", float: "a number", str: "text"}


class Promise(NamedTuple):
    """A setting of RocketMQ whose value asks for safety that is not provided, and what to do about it."""

    asks: Callable[[str], bool]
    """Whether a value asks for it."""
    missing: str
    """What the value asks for, and that it is missing."""
    way: str
    """What to do."""
    kept_by: str = ""
    """The option that provides it, if there is one."""


def is_true(value: str) -> bool:
    return value.strip().lower() == "true"


def is_false(value: str) -> bool:
    return value.strip().lower() == "false"


def is_given(value: str) -> bool:
    return bool(value.strip())


def above(limit: int) -> Callable[[str], bool]:
    """Numbers above a limit; what is no number is reported when the setting is read."""
    return lambda value: value.strip().isdecimal() and int(value) > limit


def unkept_promises(
    entries: Mapping[str, str], promises: Mapping[str, Promise], kept: Collection[str] = ()
) -> list[str]:
    """What settings (by RocketMQ's names) ask for that neither we nor the options in `kept` provide, one text each."""
    found = ((key, value, promises[key]) for key, value in entries.items() if key in promises)
    return [
        f"{key}={value[:80]}: {promise.missing}; {promise.way}"
        for key, value, promise in found
        if promise.asks(value) and promise.kept_by not in kept
    ]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest known name as a question, or nothing where none is near. Case makes no difference."""
    by_lower = {each.lower(): each for each in known}
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.75)
    return f"did you mean {by_lower[nearest[0]]}?" if nearest else ""


def read_toml(text: str) -> dict[str, Any]:
    """The document. Raises BadConfig when it is none, or has a number that nobody could print: 0b1111 and so on."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # Numbers of thousands of digits are no TOMLDecodeError.
        raise BadConfig(f"expected settings in TOML, found something else: {error}") from error
    waiting: list[Any] = [document]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found
        elif isinstance(found, int) and found.bit_length() > NUMBER_BITS_MAX:
            raise BadConfig(f"expected numbers of at most {NUMBER_BITS_MAX} bits, found one of {found.bit_length()}")
    return document


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What every configuration can do. Derive a frozen dataclass, and call `check_settings` in `__post_init__`."""

    TABLE: ClassVar[str]
    """The table of a TOML document that holds these settings."""
    AT_TOP: ClassVar[bool] = False
    """Whether they may also stand at the top of the document."""
    ACRONYMS: ClassVar[Mapping[str, str]] = {}
    """Words of a property's name that are spelled otherwise than with one capital letter."""

    def check_settings(self) -> None:
        """Bring every field into its own type, and refuse what cannot be. Raises BadConfig."""
        for setting in settings_of(type(self)).values():
            object.__setattr__(self, setting.name, setting.parse(getattr(self, setting.name)))

    def with_settings(self, **settings: Any) -> Self:
        """A copy with some settings changed, by snake_case name; an unknown name raises BadConfig."""
        known = settings_of(type(self))
        for name in settings:
            if name not in known:
                raise BadConfig(_unknown(name, known))
        return dataclasses.replace(self, **settings)

    @classmethod
    def from_properties(cls, text: str) -> tuple[Self, list[str]]:
        """Settings of a `broker.conf`, and the keys in it that are no settings of this kind, in file order."""
        values: dict[str, Any] = {}
        ignored = []
        spelled = _by_property(cls)
        for key, value in read_properties(text).items():
            setting = spelled.get(key)
            if setting is None:
                ignored.append(key)
            else:
                values[setting.name] = value
        return cls(**values), ignored

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Settings of this kind's table in a TOML document, and where that is allowed those at its top.

        Keys are snake_case or RocketMQ's own spelling. An unknown key raises BadConfig: the file is ours to get right.
        Other tables belong to other parts.
        """
        document = read_toml(text)
        table = {key: value for key, value in document.items() if cls.AT_TOP and not isinstance(value, Mapping)}
        own = document.get(cls.TABLE, {})
        if isinstance(own, Mapping):
            table.update(own)
        known, spelled = settings_of(cls), _by_property(cls)
        values = {}
        for key, value in table.items():
            setting = known.get(key) or spelled.get(key)
            if setting is None:
                raise BadConfig(_unknown(key, [*known, *spelled]))
            values[setting.name] = value
        return cls(**values)

    def to_properties(self) -> str:
        """Every setting as a line of a `broker.conf`; `from_properties` reads back an equal configuration."""
        return "".join(
            f"{setting.property_name}={escaped_property(setting.render(getattr(self, setting.name)))}\n"
            for setting in settings_of(type(self)).values()
        )


_known: dict[type[Any], dict[str, Setting]] = {}


def settings_of(kind: type[Configuration]) -> dict[str, Setting]:
    """The settings of a configuration by snake_case name, in the order of its fields. Read once for each kind."""
    if kind not in _known:
        _known[kind] = _read_fields(kind)
    return _known[kind]


def _read_fields(kind: type[Configuration]) -> dict[str, Setting]:
    return {
        field.name: Setting(
            field.name,
            _property_name(field.name, kind.ACRONYMS),
            field.default,
            field.metadata.get("low", 0),
            field.metadata.get("high", LONG_MAX),
        )
        for field in dataclasses.fields(kind)
    }


def _by_property(kind: type[Configuration]) -> dict[str, Setting]:
    known = settings_of(kind)
    spelled = {setting.property_name: setting for setting in known.values()}
    assert len(spelled) == len(known)
    return spelled


def _property_name(name: str, acronyms: Mapping[str, str]) -> str:
    first, *rest = name.split("_")
    return first + "".join(acronyms.get(word.capitalize(), word.capitalize()) for word in rest)


def _unknown(name: str, known: Iterable[str]) -> str:
    return f"there is no setting named {name}: {did_you_mean(name, known) or 'docs/operations.md lists the settings'}"


# Java properties ------------------------------------------------------------------------------------------------------

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(text: str) -> dict[str, str]:
    """Keys and values of a Java properties file, in file order; a repeated key keeps its last value."""
    entries: dict[str, str] = {}
    for line in _logical_lines(text):
        at = 0
        while at < len(line) and line[at] not in _BLANKS + "=:":
            at += 2 if line[at] == "\\" else 1
        key, rest = line[:at], line[at:].lstrip(_BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANKS)
        entries[_unescaped(key)] = _unescaped(rest)
    return entries


def _logical_lines(text: str) -> Iterable[str]:
    """Lines without comments and blank lines; a line that ends in an odd number of backslashes goes on in the next."""
    pending = ""
    continued = False
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(_BLANKS)
        if not continued and line[:1] in ("", "#", "!"):
            continue
        continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        pending += line[:-1] if continued else line
        if not continued:
            if pending:
                yield pending
            pending = ""
    if pending:
        yield pending


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text

    def plain_character(match: re.Match[str]) -> str:
        digits, letter = match[1], match[2]
        if digits is None:
            return _ESCAPES.get(letter, letter)
        if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
            raise BadConfig(f"a \\u in a properties file is followed by four hex digits, found {text!r}")
        return chr(int(digits, 16))

    plain = re.sub(r"\\(?:u(.{0,4})|(.?))", plain_character, text, flags=re.DOTALL)
    # Characters beyond the first plane are written as two escapes, a surrogate pair: join them again.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def escaped_property(text: str) -> str:
    """A value as a properties file spells it, in ASCII."""
    pieces = []
    for at, character in enumerate(text):
        if character in "\\=:#!" or (character == " " and at == 0):
            pieces.append("\\" + character)
        elif character.isascii() and character.isprintable():
            pieces.append(character)
        else:
            utf16 = character.encode("utf-16-be", "surrogatepass")
            pieces.extend(f"\\u{utf16[i]:02x}{utf16[i + 1]:02x}" for i in range(0, len(utf16), 2))
    return "".join(pieces)
