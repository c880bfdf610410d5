"""Settings as values: one name in two spellings, a type, bounds, and how they are read from text.

One name in three spellings: `file_reserved_time` in Python and TOML, `fileReservedTime` in a `broker.conf` (a Java
properties file, or flat YAML), and either of them in TOML. A value may always be given as text.

A configuration is a frozen dataclass that derives from `Configuration`; its fields are its settings. Invariants: one
that exists is valid (everything is checked when it is made, nothing afterwards); it never changes.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from tiermq.errors import BadConfig

NUMBER_BITS_MAX = 64
TABLES = ("broker", "controller", "namesrv", "store", "tier")
"""Of a TOML document: it may hold the settings of several programs."""

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1


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
        if type(value) is not kind:  # Not isinstance: True is not a size.
            raise BadConfig(f"{self.name} is {_KIND_NAMES.get(kind, 'one of its names')}, found {value!r}")
        if isinstance(value, int) and not self.low <= value <= self.high:
            raise BadConfig(f"{self.name} must be within {self.low} and {self.high}, found {value}")
        return value

    def _from_text(self, text: str, kind: type) -> object:
        if issubclass(kind, enum.IntEnum) and re.fullmatch(r"[0-9]+", text):
            return int(text)  # An enum may be given by number or by name.
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
    """A setting of RocketMQ whose value requires safety that is not provided, and what to do about it."""

    asks: Callable[[str], bool]
    """Whether a value requires it."""
    missing: str
    """What the value requires, and that it is missing."""
    way: str
    """What to do."""
    kept_by: str = ""
    """The option that provides it, if there is one."""
    values: tuple[str, ...] = ()
    """All valid values, where it is neither a number nor free text."""


def is_true(value: str) -> bool:
    return value.strip().lower() == "true"


def is_false(value: str) -> bool:
    return value.strip().lower() == "false"


@dataclasses.dataclass(frozen=True, slots=True)
class Above:
    """Numbers above a limit."""

    limit: int

    def __call__(self, value: str) -> bool:
        return _WHOLE_NUMBER.fullmatch(value.strip()) is not None and int(value) > self.limit


BOOLEANS = ("true", "false")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)


def check_promise_values(entries: Mapping[str, str], promises: Mapping[str, Promise]) -> None:
    """Raises BadConfig for a value that is none of the valid ones: `yes` must not be taken for a harmless `false`."""
    for problem in promise_value_problems(entries, promises):
        raise BadConfig(problem)


def promise_value_problems(entries: Mapping[str, str], promises: Mapping[str, Promise]) -> Iterator[str]:
    """All of them."""
    for key, value in entries.items():
        if (promise := promises.get(key)) is None:
            continue
        valid = BOOLEANS if promise.asks in (is_true, is_false) else promise.values
        if valid and value.strip().lower() not in valid:
            yield f"{key} is {', '.join(valid[:-1])} or {valid[-1]}, found {value[:80]!r}"
        if isinstance(promise.asks, Above) and not _WHOLE_NUMBER.fullmatch(value.strip()):
            yield f"{key} is a whole number, found {value[:80]!r}"


def is_given(value: str) -> bool:
    return bool(value.strip())


def unkept_promises(
    entries: Mapping[str, str], promises: Mapping[str, Promise], kept: Collection[str] = ()
) -> list[str]:
    """What settings (RocketMQ's names) require that neither TierMQ nor the options in `kept` provide, one text each."""
    found = ((key, value, promises[key]) for key, value in entries.items() if key in promises)
    return [
        f"{key}={value[:80]}: {promise.missing}; {promise.way}"
        for key, value, promise in found
        if promise.asks(value) and promise.kept_by not in kept
    ]


def unkept_in_file(
    path: Path, promises: Mapping[str, Promise], kept: Collection[str] = (), known: Collection[str] = ()
) -> list[str]:
    """The same, of a file. Unknown keys of a TOML file are refused by its reader: such a file promises nothing.

    `known`: names that are settings of some server, and so no misspelled ones of `promises`.
    """
    if path.suffix == ".toml":
        return []
    entries = read_entries(read_settings_text(path), path.suffix)
    check_promise_values(entries, promises)
    misspelled = (misspelled_promise(key, value, promises) for key, value in entries.items() if key not in known)
    return [*unkept_promises(entries, promises, kept), *filter(None, misspelled)]


NEAR = 0.75
"""Of two names, by difflib's measure: `listenPrt` for `listenPort` is nearer."""
SECURITY_WORDS = frozenset(
    "acl auth authenticate authentication authorize authorization authorisation tls ssl sasl mtls".split()  # noqa: SIM905
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_OFF = ("", "0", "false", "no", "off", "none", "disabled")


def misspelled_promise(key: str, value: str, promises: Mapping[str, Promise], also: Collection[str] = ()) -> str:
    """Why a key that no server knows may be a misspelled promise, or a setting of security; empty if it is neither.

    `also`: settings of durability, which are not in `promises` since they are kept. The value is not in the text: it
    may be a secret.
    """
    import difflib

    if key in promises:
        return ""
    by_plain = {_plain(each): each for each in (*promises, *also)}
    [nearest] = difflib.get_close_matches(_plain(key), by_plain, n=1, cutoff=NEAR) or [""]
    words = _words(key)
    meant = by_plain.get(nearest) or next((each for each in (*promises, *also) if _words(each) == words), "")
    promise = promises.get(meant)
    if promise is not None:
        is_off = value.strip().lower() == "false" and not promise.asks("false")
        return "" if is_off else f"{key}: there is no such setting; did you mean {meant}? Then {promise.missing}"
    if meant:
        return f"{key}: there is no such setting; did you mean {meant}?"
    if not SECURITY_WORDS.isdisjoint(words) and value.strip().lower() not in _OFF:
        return f"{key}: there is no such setting, and it looks like one of security: see --acl and --tls"
    return ""


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _words(name: str) -> list[str]:
    """Of a name in camel case, sorted; `enabled` and `enable` are one."""
    return sorted(re.sub(r"enabled?|enabling", "enable", word.lower()) for word in _WORDS.findall(name))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest known name as a question, or nothing where none is near. Ignores case."""
    import difflib

    by_lower = {each.lower(): each for each in known}
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.75)
    return f"did you mean {by_lower[nearest[0]]}?" if nearest else ""


def read_toml(text: str) -> dict[str, Any]:
    """Parse the document. Raises BadConfig when it is invalid, or has a number that cannot be printed (0b1111…)."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # Numbers of thousands of digits raise no TOMLDecodeError.
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


def table_problems(document: Mapping[str, Any], *known: str) -> list[str]:
    """The tables of a TOML document that no program reads, as text: their settings would be without effect."""
    tables = sorted({*TABLES, *known})
    listed = f"expected one of {', '.join(tables)}"
    return [
        f"there is no table [{name}]: {did_you_mean(name, tables) or listed}"
        for name, value in document.items()
        if isinstance(value, Mapping) and name not in tables
    ]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Base of every configuration. Derive a frozen dataclass, and call `check_settings` in `__post_init__`."""

    TABLE: ClassVar[str]
    """The table of a TOML document that holds these settings."""
    AT_TOP: ClassVar[bool] = False
    """Whether they may also be at the top level of the document."""
    ACRONYMS: ClassVar[Mapping[str, str]] = {}
    """Words of a property's name that are spelled otherwise than with one capital letter."""
    DOCUMENT: ClassVar[str] = "docs/operations.md"
    """Where these settings are listed."""

    def check_settings(self) -> None:
        """Convert every field to its type, and refuse invalid values. Raises BadConfig."""
        for setting in settings_of(type(self)).values():
            object.__setattr__(self, setting.name, setting.parse(getattr(self, setting.name)))

    def with_properties(self, entries: Mapping[str, str]) -> Self:
        """A copy with some settings changed, by RocketMQ's names; other keys are left out, as RocketMQ does."""
        spelled = _by_property(type(self))
        return self.with_settings(**{spelled[key].name: value for key, value in entries.items() if key in spelled})

    def with_settings(self, **settings: Any) -> Self:
        """A copy with some settings changed, by snake_case name; an unknown name raises BadConfig."""
        known = settings_of(type(self))
        for name in settings:
            if name not in known:
                raise BadConfig(_unknown(name, known, self.DOCUMENT))
        return dataclasses.replace(self, **settings)

    @classmethod
    def from_file(cls, path: Path) -> tuple[Self, list[str]]:
        """Settings of a file (TOML and YAML by its suffix, else properties), and keys that are none of this kind."""
        text = read_settings_text(path)
        if path.suffix == ".toml":
            return cls.from_toml(text), []
        return cls._from_entries(read_entries(text, path.suffix))

    @classmethod
    def from_properties(cls, text: str) -> tuple[Self, list[str]]:
        """Settings of a `broker.conf`, and the keys in it that are no settings of this kind, in file order."""
        return cls._from_entries(read_properties(text))

    @classmethod
    def _from_entries(cls, entries: Mapping[str, str]) -> tuple[Self, list[str]]:
        values: dict[str, Any] = {}
        ignored = []
        spelled = _by_property(cls)
        for key, value in entries.items():
            setting = spelled.get(key)
            if setting is None:
                ignored.append(key)
            else:
                values[setting.name] = value
        with named_as({setting.name: setting.property_name for setting in spelled.values()}):
            return cls(**values), ignored

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Settings of this kind's table in a TOML document, and where that is allowed those at its top level.

        Keys are snake_case or RocketMQ's own spelling. An unknown key or table raises BadConfig; tables of other
        programs are ignored.
        """
        document = read_toml(text)
        for problem in table_problems(document, cls.TABLE):
            raise BadConfig(problem)
        table = {key: value for key, value in document.items() if cls.AT_TOP and not isinstance(value, Mapping)}
        own = document.get(cls.TABLE, {})
        if isinstance(own, Mapping):
            table.update(own)
        known, spelled = settings_of(cls), _by_property(cls)
        values, written = {}, {}
        for key, value in table.items():
            setting = known.get(key) or spelled.get(key)
            if setting is None:
                raise BadConfig(_unknown(key, [*known, *spelled], cls.DOCUMENT))
            values[setting.name] = value
            written[setting.name] = key
        with named_as(written):
            return cls(**values)

    def changed_properties(self) -> dict[str, str]:
        """The settings that are not the defaults, by the names of a `broker.conf`."""
        return {
            setting.property_name: setting.render(value)
            for setting in settings_of(type(self)).values()
            if (value := getattr(self, setting.name)) != setting.default
        }

    def to_properties(self) -> str:
        """Every setting as a line of a `broker.conf`; `from_properties` reads back an equal configuration."""
        return "".join(
            f"{setting.property_name}={escaped_property(setting.render(getattr(self, setting.name)))}\n"
            for setting in settings_of(type(self)).values()
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfiguration(Configuration):
    """Base of a server's configuration. Derive a frozen dataclass with a default port."""

    AT_TOP: ClassVar[bool] = True
    FIXED_WHILE_RUNNING: ClassVar[frozenset[str]] = frozenset({"listen_port", "bind_address"})
    """Settings that a running server does not change."""

    listen_port: int = whole(0, high=65_535)
    """0 takes a free port."""
    bind_address: str = "127.0.0.1"
    """Only this machine can connect; 0.0.0.0, RocketMQ's default, is every address."""

    def __post_init__(self) -> None:
        self.check_settings()
        if not self.bind_address:
            raise BadConfig("bind_address: expected an address to listen at, found none: 0.0.0.0 is every one")

    @classmethod
    def fixed_properties(cls, entries: Iterable[str]) -> list[str]:
        """Which of these properties cannot be changed while the server runs."""
        known = settings_of(cls)
        return sorted({known[name].property_name for name in cls.FIXED_WHILE_RUNNING}.intersection(entries))


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


def _unknown(name: str, known: Iterable[str], document: str) -> str:
    return f"there is no setting named {name}: {did_you_mean(name, known) or f'{document} lists the settings'}"


@contextmanager
def named_as(written: Mapping[str, str]) -> Iterator[None]:
    """A BadConfig of the block names settings as a file spells them, by their names in snake_case. Values stay."""
    try:
        yield
    except BadConfig as error:
        text = re.sub(
            r"(?<![\w'\"])[a-z0-9]+(?:_[a-z0-9]+)+(?!\w)", lambda name: written.get(name[0], name[0]), str(error)
        )
        raise BadConfig(text) from error


# Files ----------------------------------------------------------------------------------------------------------------

YAML_SUFFIXES = (".yml", ".yaml")


def read_settings_text(path: Path) -> str:
    """A file's text. Raises BadConfig when it is not in UTF-8, and OSError."""
    data = path.read_bytes()
    try:
        return data.decode("utf-8").removeprefix("\ufeff")  # Some editors begin a file with a byte order mark.
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadConfig(
            f"expected text in UTF-8, found byte 0x{data[error.start]:02x} in line {line}: save the file as UTF-8"
        ) from None


def read_entries(text: str, suffix: str) -> dict[str, str]:
    """Keys and values, as text, of flat YAML (by the file's suffix) or of Java properties. Raises BadConfig."""
    if suffix not in YAML_SUFFIXES:
        if text.lstrip()[:1] == "{":  # As properties, each of its lines would be an unknown setting.
            raise BadConfig(
                "expected lines of the form name=value, found JSON, as in RocketMQ's rmq-proxy.json: write its "
                "settings into a broker.conf, or into YAML (*.yml) or TOML (*.toml)"
            )
        return read_properties(text)
    entries = read_yaml(text)
    for key, value in entries.items():
        if not isinstance(value, str):
            raise BadConfig(
                f"{key}: expected one value, found several below it: settings in YAML stand at the top, one in a line, "
                "as in brokerName: broker-a"
            )
    return entries


def read_yaml(text: str) -> dict[str, Any]:
    """A YAML document of names and values; a value is text, or a map or a list of such. Raises BadConfig."""
    import yaml  # Takes longer than the rest of this module, and few files are YAML.

    class _YamlText(yaml.BaseLoader):
        """Maps, lists and text alone: a secret of digits stays as it is written. A key that comes twice is refused."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            made = super().construct_mapping(node, deep=deep)
            if len(made) != len(node.value):
                line = node.start_mark.line + 1
                raise BadConfig(f"expected each key once, found one twice in the map that begins in line {line}")
            return made

    try:
        found = yaml.load(text, _YamlText)  # noqa: S506 - it makes no objects
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)  # The error's own text quotes the file, secrets and all.
        raise BadConfig(f"expected YAML, found an error in line {mark.line + 1}" if mark else "expected YAML") from None
    if found and not isinstance(found, dict):
        raise BadConfig(f"expected names and values, found {'a list' if isinstance(found, list) else 'text'}")
    return found or {}


CHANGE_BYTES_MAX = 256 * 1024
CHANGED_MAX = 1_000
CHANGED_NAME_CHARACTERS_MAX = 255
VALUE_CHARACTERS_MAX = 4_096
"""Of one value that a request changes."""


def read_change(data: bytes) -> dict[str, str]:
    """Settings that a request changes: a properties file, bounded before it is parsed. Raises BadConfig."""
    lines = data.count(b"\n") + data.count(b"\r") + 1
    if len(data) > CHANGE_BYTES_MAX or lines > 2 * CHANGED_MAX:
        raise BadConfig(
            f"expected settings in at most {CHANGE_BYTES_MAX} bytes and {2 * CHANGED_MAX} lines, found {len(data)} "
            f"bytes and {lines} lines: split the request"
        )
    try:
        entries = read_properties(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadConfig(f"expected settings as a properties file has them: {error}") from error
    if len(entries) > CHANGED_MAX:
        raise BadConfig(f"expected at most {CHANGED_MAX} settings, found {len(entries)}: split the request")
    for name, text in entries.items():
        if len(name) > CHANGED_NAME_CHARACTERS_MAX or len(text) > VALUE_CHARACTERS_MAX:
            raise BadConfig(
                f"{name[:80]}: expected a name of at most {CHANGED_NAME_CHARACTERS_MAX} characters and a value of at "
                f"most {VALUE_CHARACTERS_MAX} characters, found {len(name)} and {len(text)}"
            )
    return entries


# Java properties ------------------------------------------------------------------------------------------------------

BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(text: str) -> dict[str, str]:
    """Keys and values of a Java properties file, in file order; a repeated key keeps its last value."""
    entries: dict[str, str] = {}
    for line in _logical_lines(text):
        at = 0
        while at < len(line) and line[at] not in BLANKS + "=:":
            at += 2 if line[at] == "\\" else 1
        key, rest = line[:at], line[at:].lstrip(BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(BLANKS)
        entries[_unescaped(key)] = _unescaped(rest)
    return entries


def _logical_lines(text: str) -> Iterable[str]:
    """Lines without comments and blank lines; a line with an odd number of backslashes at its end continues."""
    pending = ""
    continued = False
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(BLANKS)
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
    # Characters beyond the first plane are two escapes, a surrogate pair: join them.
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
