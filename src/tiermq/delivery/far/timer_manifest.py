"""The manifest of a broker's far timers: which timer objects count.

One document (`tier.metadata.document`), replaced by compare-and-set only, so that two writers never both succeed.

    objects       those that count, besides flushes with a serial number above `settled`
    settled       flushes up to this number are in `objects` by now, or gone
    forgottenMs   everything due before was delivered
    damaged       objects whose timers were due and could not all be read: kept for a person to look at

What is listed and in neither is left over from a writer that died, and the owner removes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tiermq.delivery.far.timer_names import TimerName, parse_timer_name
from tiermq.tier.metadata.document import (
    items_field,
    natural_field,
    open_document,
    refuse_document,
    seal_document,
    text_field,
)

MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class TimerManifest:
    """See the module."""

    objects: frozenset[TimerName] = frozenset()
    damaged: frozenset[TimerName] = frozenset()
    settled: int = 0
    forgotten_ms: int = 0
    epoch: int = 0
    writer: str = ""

    def live(self, listed: Iterable[TimerName]) -> frozenset[TimerName]:
        """What counts, given what is listed."""
        new = (name for name in listed if name.bucket is None and name.serial > self.settled)
        return self.objects.union(new) - self.damaged


def encode_timer_manifest(manifest: TimerManifest) -> bytes:
    """Equal manifests are equal bytes."""
    body = {
        "damaged": sorted(name.text for name in manifest.damaged),
        "epoch": manifest.epoch,
        "forgottenMs": manifest.forgotten_ms,
        "objects": sorted(name.text for name in manifest.objects),
        "settled": manifest.settled,
        "writer": manifest.writer,
    }
    return seal_document(body, MANIFEST_VERSION)


def decode_timer_manifest(data: bytes, where: str) -> TimerManifest:
    """Raises FutureManifest or CorruptManifest."""
    body = open_document(data, where, MANIFEST_VERSION)
    try:
        return TimerManifest(
            _names(body, "objects"),
            _names(body, "damaged"),
            natural_field(body, "settled"),
            natural_field(body, "forgottenMs"),
            natural_field(body, "epoch"),
            text_field(body, "writer"),
        )
    except (ValueError, TypeError, LookupError) as error:
        refuse_document(where, f"a body that is no manifest of timers ({error})")


def _names(body: Any, field: str) -> frozenset[TimerName]:
    found = set()
    for text in items_field(body, field):
        name = parse_timer_name(text) if isinstance(text, str) else None
        if name is None:
            raise ValueError(f"{field} holds names of timer objects, found {text!r}")
        found.add(name)
    return frozenset(found)
