"""The one tree of errors.

Every error says what was expected, what was found, where, and what the reader can do about it.
Refusals that RocketMQ expresses as a put or get status are statuses (`tiermq.status`), not errors.
"""

from __future__ import annotations


class TierMQError(Exception):
    """Root of every error raised on purpose by TierMQ."""


class CorruptRecord(TierMQError):
    """Bytes that do not form a valid record, unit, index file or property string."""


class StoreError(TierMQError):
    """The store as a whole cannot do what was asked."""


class StoreClosed(StoreError):
    """The store is closed or was never started."""


class StoreLocked(StoreError):
    """Another process holds the store directory."""


class StoreDamaged(StoreError):
    """A file of the store directory is foreign, missing, or of the wrong size."""


class DiskFull(StoreError):
    """The file system has no room for the bytes that were about to be written. Nothing was written."""


class ReadOnlyStore(StoreError):
    """The directory cannot be written by this process."""


class IllegalMessage(TierMQError, ValueError):
    """A message value that no record can hold (wrong type, wrong range)."""


class BadConfig(TierMQError, ValueError):
    """A setting that does not exist or has an impossible value."""


class IllegalTransition(TierMQError):
    """A state machine was asked to move in a direction that it forbids."""
