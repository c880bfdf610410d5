"""Which messages of a queue a request wants: store time, tags and keys, exactly.

Planning prunes by whole segments and by hashes; this decides about each message, by what it says itself. The kernel
does so over bytes, before it decodes anything costly; `RowFilter.matches` is the same rule over one decoded message.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiermq.history.scan_values import EVER_MS, ScanRequest
from tiermq.kernel import TIME_MAX_MS, TIME_MIN_MS
from tiermq.message import properties as names
from tiermq.message.properties import get_property
from tiermq.message.stored_message import StoredMessage


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Restrictions are joined by "and"; those that are empty do not restrict.

    Tags and keys are compared as UTF-8, to the byte. A key is one piece of KEYS, split on spaces, or UNIQ_KEY.
    """

    begin_ms: int = TIME_MIN_MS
    end_ms: int = TIME_MAX_MS
    tags: tuple[bytes, ...] = ()
    keys: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, request: ScanRequest) -> RowFilter:
        """The part of a request that only a message itself can answer."""
        return cls(
            begin_ms=request.begin_ms if request.begin_ms > 0 else TIME_MIN_MS,
            end_ms=request.end_ms if request.end_ms < EVER_MS else TIME_MAX_MS,
            tags=tuple(sorted(tag.encode() for tag in request.tags)),
            keys=tuple(sorted(key.encode() for key in request.keys)),
        )

    @property
    def takes_everything(self) -> bool:
        return self == RowFilter()

    def matches(self, message: StoredMessage) -> bool:
        """Whether `message` is wanted."""
        if not self.begin_ms <= message.store_timestamp_ms <= self.end_ms:
            return False
        encoded = message.encoded_properties
        if self.tags and get_property(encoded, names.TAGS.encode()) not in self.tags:
            return False
        if not self.keys:
            return True
        own = (get_property(encoded, names.KEYS.encode()) or b"").split(b" ")
        own.append(get_property(encoded, names.UNIQ_KEY.encode()) or b"")
        return any(key and key in self.keys for key in own)
