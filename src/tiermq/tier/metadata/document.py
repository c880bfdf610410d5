"""Small JSON documents of our own in the tier: manifests and leases. Versioned and checksummed.

    {"body": {...}, "crc32": <of the body's canonical text, and of the version's digits behind it>, "version": 2}

Keys are sorted, there is no white space, text is UTF-8: equal documents are equal bytes. The sum of version
1, which is older than that rule, covers the body alone. So a damaged digit never turns a document into a valid one of
another version.

Invariant, for all future versions: these three keys, and this sum. A document with a correct sum and a version higher
than ours is refused, because its body may have any meaning; one with a wrong sum is damaged, whatever its version.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, NoReturn

from tiermq.errors import FutureManifest, TierError

COUNT_MAX = 1 << 62
"""Offsets, sizes, epochs and sequences are below, so that their sums and successors fit 64 bits, as SQLite needs it."""
REBUILD = "it can be rebuilt from the segments beside it"


class CorruptManifest(TierError):
    """An object that should be a manifest or a lease, and is damaged."""


def seal_document(body: dict[str, Any], version: int) -> bytes:
    """A small JSON document of ours with its version and its checksum."""
    return _canonical({"body": body, "crc32": _checksum(body, version), "version": version})


def open_document(data: bytes, name: str, version_max: int, remedy: str = REBUILD) -> dict[str, Any]:
    """The body of such a document. Raises FutureManifest or CorruptManifest with `remedy`."""
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        refuse_document(name, f"{len(data)} bytes that are no JSON ({error})", remedy)
    version = document.get("version") if isinstance(document, dict) else None
    if type(version) is not int or version < 1:
        refuse_document(name, "no version number", remedy)
    body, checksum = document.get("body"), document.get("crc32")
    if not isinstance(body, dict):
        refuse_document(name, "no body", remedy)
    try:
        computed = _checksum(body, version)
    except (ValueError, RecursionError) as error:  # Lone surrogates, or nesting beyond reason.
        refuse_document(name, f"a body that has no canonical text ({error})", remedy)
    if checksum != computed:
        refuse_document(name, f"checksum {checksum} where version {version} of its body has {computed}", remedy)
    if version > version_max:
        raise FutureManifest(
            f"{name}: expected version {version_max} or older, found {version}; a newer TierMQ writes here, "
            f"so use that one: this one will neither read nor overwrite it"
        )
    return body


def _checksum(body: dict[str, Any], version: int) -> int:
    of_body = zlib.crc32(_canonical(body))
    return of_body if version == 1 else zlib.crc32(b"%d" % version, of_body)


def _canonical(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def refuse_document(name: str, found: str, remedy: str = REBUILD) -> NoReturn:
    """Raise CorruptManifest for what was found under that name."""
    raise CorruptManifest(f"{name}: expected a document written by TierMQ, found {found}; {remedy}")


def number_field(body: Any, field: str, low: int = -(1 << 63), below: int = 1 << 63) -> int:
    """A 64-bit integer of a body, or one within closer bounds. Raises ValueError or LookupError."""
    value = body[field]
    if type(value) is not int or not low <= value < below:
        raise ValueError(f"{field} is an integer from {low} to {below - 1}, found {str(value)[:40]}")
    return value


def natural_field(body: Any, field: str) -> int:
    """A count, a size or an epoch."""
    return number_field(body, field, 0, COUNT_MAX)


def offset_field(body: Any, field: str) -> int:
    """An offset or a sequence; -1 where it is not known."""
    return number_field(body, field, -1, COUNT_MAX)


def text_field(body: Any, field: str) -> str:
    """A text of a body."""
    value = body[field]
    if not isinstance(value, str):
        raise TypeError(f"{field} is text, found {value!r}")
    return value


def items_field(body: Any, field: str) -> list[Any]:
    """A list of a body."""
    value = body[field]
    if not isinstance(value, list):
        raise TypeError(f"{field} is a list, found {value!r}")
    return value
