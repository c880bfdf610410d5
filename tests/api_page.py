"""docs/api.md from the docstrings of the public names: `python3 tests/api_page.py` writes it.

What is public: the names in `__all__` of `tiermq`, of `tiermq.client` and of `OTHERS`, and of their classes what has no
underscore and a docstring of its own. Of the client's classes for asyncio: what their twins for threads have too.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tiermq
from tiermq import client, errors
from tiermq.client.member import async_producer, handlers, start_position, transactions
from tiermq.embedded import history_frame, locations
from tiermq.kernel import pure
from tiermq.message import topic_name

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"
SECTIONS = {
    "Stores": ("LocalStore", "TieredStore", "AsyncStore", "NotUploaded"),
    "Reading and consuming": ("MessageStream", "AsyncStream", "Consumer", "AsyncConsumer"),
    "Messages, results and pages": ("Message", "StoredMessage", "PutResult", "PutResults", "GetPage", "QueryPage"),
    "Statuses": ("PutStatus", "GetStatus"),
    "History for data tools": ("read", "HistoryFrame"),
    "Client of a cluster": ("connect", "aconnect", "Decision", "RetryLater"),
    "Classes of the client": (
        *("client.Cluster", "client.Producer", "client.Transaction", "client.Consumer", "client.SimpleConsumer"),
        *("client.AsyncCluster", "client.AsyncProducer", "client.AsyncTransaction", "client.AsyncConsumer"),
        *("client.AsyncSimpleConsumer", "client.ReceivedMessage", "client.SendReceipt", "client.SendStatus"),
        *("client.QueuePlace", "client.MessageQueue", "client.ClientTls"),
    ),
    "Settings and reports": (
        *("StoreConfig", "TierConfig", "MessageFilter", "TagFilter", "Clock", "Registry", "Cleaned", "RetentionReport"),
        "RestoreReport",
    ),
    "Errors": ("errors",),
}
ALIASES = {
    "Location": (locations, "a directory or, of a tier, a URL"),
    "Moment": (locations, "an age (`90s`, `15m`, `1h`, `3d`, or a timedelta), ISO text, a datetime, or ms since 1970"),
    "Stores": (history_frame, "one or several store directories"),
    "Texts": (history_frame, "one or several"),
    "QueueName": (topic_name, "topic and queue id"),
    "Start": (start_position, "where a group begins: at the first message, behind the last one, or at a time"),
    "QueueChoice": (async_producer, "chooses one of a topic's queues"),
    "Check": (transactions, "answers brokers that ask about a transaction; also a coroutine function"),
    "Handler": (handlers, "is called for each message; also a coroutine function"),
}
"""Names of types in signatures that are no classes. Programs write what they stand for."""
OTHERS = {
    "tiermq.spark": 'For [Spark](spark.md): sessions, scans, tables. `spark.read.format("tiermq")` needs none of them.',
    "tiermq.testing": "A broker inside a test, also as the pytest fixture `tiermq_broker`: [testing](testing.md).",
}
MADE = (
    "AsyncStore", "ClientTls", "LocalBroker", "Message", "MovableClock", "ScanMeter", "SparkRunner",
)  # fmt: skip
"""Classes of which a program makes objects by their name."""
HEAD = """# Python API

The names of the packages `tiermq`, `tiermq.client`, `tiermq.spark` and `tiermq.testing`, from their docstrings.
Everything else is inside, and may change. The [embedded store](embedded.md) and the [Python client](python_client.md)
have tutorials and recipes.

<!-- Written by `python3 tests/api_page.py`; a test compares. -->
"""


def page() -> str:
    """The whole page."""
    named = [name for names in SECTIONS.values() for name in names]
    public = [*tiermq.__all__, *(f"client.{name}" for name in client.__all__)]
    sections = {**SECTIONS, "More": tuple(name for name in public if name not in named)}
    parts = [HEAD]
    for title, names in sections.items():
        if names:
            parts.append(f"## {title}\n")
            if title == "Errors":
                parts.insert(-1, _aliases())
            parts += [_entry("tiermq", name, _value_of(name)) for name in names]
    shown = [_value_of(name) for name in public]
    for module, words in OTHERS.items():
        package = importlib.import_module(module)
        values = {name: getattr(package, name) for name in sorted(package.__all__)}
        parts.append(f"## {module}\n\n{words}\n")
        parts += [_entry(module, name, value) for name, value in values.items() if value not in shown]
    return "\n".join(parts).rstrip() + "\n"


def _value_of(name: str) -> Any:
    home, _, own = name.rpartition(".")
    return getattr(client if home else tiermq, own)


def _entry(module: str, name: str, value: Any) -> str:
    # The pure kernel has the signatures that the compiled one has, too.
    value = getattr(pure, name, value)
    if name == "errors":
        return _errors()
    if inspect.isfunction(value):
        return f"### `{module}.{name}`\n\n```text\n{name}{_signature(value)}\n```\n\n{_paragraphs(value)}\n"
    lines = [f"### `{module}.{name}`\n", _paragraphs(value), ""]
    if issubclass(value, enum.Enum):
        return "\n".join([*lines, ", ".join(f"`{each.name}`" for each in value), ""])
    rows = [f"| `{shown}` | {text} |" for shown, text in _members(value)]
    return "\n".join([*lines, *(["| member | |", "|---|---|", *rows, ""] if rows else [])])


def _members(kind: Any) -> Iterator[tuple[str, str]]:
    is_client = kind.__module__.startswith("tiermq.client")
    if kind.__init__ is not object.__init__ and kind.__name__ in MADE:
        yield _row(f"{kind.__name__}{_signature(kind.__init__)}"), "makes one"
    elif (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")) and not hasattr(kind, "with_settings"):
        yield _row(", ".join(inspect.get_annotations(kind))), "its fields"
    twin = None
    if is_client and kind.__name__.startswith("Async"):
        twin = vars(getattr(client, kind.__name__.removeprefix("Async")))
    seen = set()
    for owner in kind.__mro__:
        for name, value in vars(owner).items():
            if name.startswith("_") or name in seen or not owner.__module__.startswith("tiermq"):
                continue
            if twin is not None and name not in twin:
                continue
            seen.add(name)
            value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            text = inspect.getdoc(value) if isinstance(value, property) or inspect.isfunction(value) else None
            if text:
                shown = (
                    f"{name}{_returned(value.fget)}" if isinstance(value, property) else f"{name}{_signature(value)}"
                )
                shown = f"await {shown}" if inspect.iscoroutinefunction(value) else shown
                yield _row(shown), _row(" ".join((text if is_client else text.split("\n\n")[0]).split()))


def _signature(function: Any) -> str:
    parts, is_open = [], False
    for each in inspect.signature(function).parameters.values():
        if each.name in ("self", "cls"):
            continue
        if each.kind is each.KEYWORD_ONLY and not is_open:
            parts.append("*")
            is_open = True
        stars = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
        is_open = is_open or each.kind is each.VAR_POSITIONAL
        typed = "" if each.annotation is each.empty or stars else f": {each.annotation}"
        shown = re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", repr(each.default))  # Members of enums.
        default = "" if each.default is each.empty else f" = {shown}" if typed else f"={shown}"
        parts.append(f"{stars}{each.name}{typed}{default}")
    return f"({', '.join(parts)}){_returned(function)}"


def _returned(function: Any) -> str:
    """Its type, where it has one: of a property, too."""
    kind = inspect.signature(function).return_annotation
    return "" if kind in (inspect.Signature.empty, None, "None") else f" -> {kind}"


def _aliases() -> str:
    rows = [
        f"| `{name}` | `{_row(_type_text(getattr(home, name)))}`: {words} |" for name, (home, words) in ALIASES.items()
    ]
    return "\n".join(["## Types in signatures\n", "| name | |", "|---|---|", *rows, ""])


def _type_text(kind: Any) -> str:
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", repr(kind)) if not inspect.isclass(kind) else kind.__name__


def _row(text: str) -> str:
    return text.replace("|", "\\|")


def _paragraphs(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    if text == "See the module.":
        text = inspect.getdoc(sys.modules[value.__module__]) or ""
    return re.sub(r"(?<!\n)\n(?!\n| {4})", " ", text)


def _errors() -> str:
    lines = [
        "### `tiermq.errors`\n",
        "Every error is a `TierMQError`; its text says what was expected, what was found, where, and what to do.\n",
        "| error | kind of | |",
        "|---|---|---|",
    ]
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, errors.TierMQError):
            bases = ", ".join(f"`{each.__name__}`" for each in kind.__bases__)
            lines.append(f"| `{name}` | {bases} | {_row(' '.join((inspect.getdoc(kind) or '').split()))} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
