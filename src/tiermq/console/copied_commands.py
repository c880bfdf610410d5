"""Commands that pages offer for copying: `tiermq` with the sources of the visit, quoted for a POSIX shell.

Each names the sources that the page itself read: files where the visit may read them, else the name server. None where
no command does the same. Keys of accounts are never in them: commands take those from the environment.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from tiermq.client.cluster_client import Access
from tiermq.console.sources import Visit
from tiermq.history.scan_values import StorePlace

_QUOTED = re.compile(r"'(?:[^']|'')*'|\"((?:[^\"]|\"\")+)\"")
"""A text of SQL, or a name in double quotes."""


def message_command(visit: Visit, topic: str, queue: int, offset: int, broker: str) -> str:
    """Print one message."""
    options = ["--queue", str(queue), "--offset", str(offset)]
    options += ["--broker", broker] if broker else []
    return command(["query"], [topic], [*options, *_sources(visit)])


def reset_command(visit: Visit, group: str, topic: str, to: str) -> str:
    """Reset the offsets of a group, as a preview has shown it."""
    return command(["group", "reset"], [group, topic], ["--to", to, *_brokers(visit)])


def sql_command(visit: Visit, query: str, begin_ms: int | None) -> str | None:
    """Run a query in DuckDB without the limits of the console."""
    return command(["sql"], [query], [*_since(begin_ms), *_files(visit)]) if visit.has_files else None


def spark_command(visit: Visit, query: str, topics: Sequence[str], begin_ms: int | None) -> str | None:
    """Run a query on Spark."""
    if not visit.has_files:
        return None
    return command(["pipeline", "sql"], [for_spark(query, topics)], [*_since(begin_ms), *_files(visit)])


def verify_command(visit: Visit) -> str:
    """Verify the tier, and keep the result in it."""
    return command(["tier", "verify"], [visit.sources.place.tier or ""], ["--keep"])


def replay_command(visit: Visit, topic: str, begin_ms: int) -> str | None:
    """Replay a topic from a time on into another topic."""
    if not visit.has_files:
        return None
    goal = _brokers(visit) if visit.has_wire else ["--namesrv", "HOST:9876"]
    options = ["--topic", topic, *_since(begin_ms), *_files(visit), *goal]
    return command(["pipeline", "replay"], [], [*options, "--to-topic", f"{topic}-again", "--create", "8",
                                                "--record", "./replay"])  # fmt: skip


def command(words: Sequence[str], names: Sequence[str], options: Sequence[str]) -> str:
    """One line for a POSIX shell. Names that look like options come last, where they are none."""
    if any(name.startswith("-") for name in names):
        return shlex.join(["tiermq", *words, *options, "--", *names])
    return shlex.join(["tiermq", *words, *names, *options])


def for_spark(query: str, topics: Sequence[str]) -> str:
    """A query of DuckDB with its topics as Spark quotes names: in backticks, since "orders" is a text there."""
    return _QUOTED.sub(lambda found: f"`{found[1]}`" if found[1] in topics else found[0], query)


def _since(begin_ms: int | None) -> list[str]:
    return [] if begin_ms is None else ["--since", str(begin_ms)]


def _sources(visit: Visit) -> list[str]:
    return _files(visit) if visit.has_files else _brokers(visit)


def _files(visit: Visit) -> list[str]:
    place = visit.sources.place
    found = [] if place.tier is None else ["--tier", place.tier]
    for store in place.stores:
        found += ["--store", _named(store)]
    return found


def _named(store: StorePlace) -> str:
    """`DIR`, `DIR=broker` or `DIR=cluster/broker`, from every directory of this machine."""
    path = os.path.abspath(os.path.expanduser(store.path))
    names = f"{store.cluster}/{store.broker}" if store.cluster else store.broker
    return f"{path}={names}" if names else path


def _brokers(visit: Visit) -> list[str]:
    access = visit.sources.place.access
    return [] if access is None else ["--namesrv", access.name_servers, *_tls(access)]


def _tls(access: Access) -> list[str]:
    given = (
        ("--tls-cert", access.certificates.certificate_path),
        ("--tls-key", access.certificates.key_path),
        ("--tls-ca", access.certificates.trusted_path),
    )
    words = ["--tls"] if access.tls else []
    for option, path in given:
        words += [option, os.path.abspath(path)] if path is not None else []
    return words
