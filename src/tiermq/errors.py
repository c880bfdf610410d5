"""The error tree.

Every error states what was expected, what was found, where, and what the user can do about it.
Refusals that RocketMQ expresses as a put or get status are statuses (`tiermq.status`) inside; the stores of `tiermq`
raise them.
"""

from __future__ import annotations

from typing import Any


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


class StoreNotRecovered(StoreError):
    """The process that used the directory died, and recovery has not run since: its files may end with invalid data."""


class DiskFull(StoreError):
    """The file system has no space for the bytes to be written. Nothing was written."""


class TooManyOpenFiles(StoreError):
    """The limit on descriptors or maps is reached. Nothing was written; the call can be retried."""


class PutRefused(StoreError):
    """The store did not take a message. `results` of a `put_many` has what became of each of its messages."""

    def __init__(self, text: str, results: Any = None) -> None:
        super().__init__(text)
        self.results = results

    def __reduce__(self) -> tuple[type[PutRefused], tuple[str, Any]]:
        return type(self), (str(self), self.results)


class NotDurable(PutRefused):
    """The message is in the log, but was not made as durable as the settings require. It may be read, or be lost."""


class ReadOnlyStore(StoreError):
    """The directory cannot be written by this process."""


class ReplicationError(StoreError):
    """A master's log and a slave's do not fit together, or a peer of replication broke the protocol."""


class IllegalMessage(TierMQError, ValueError):
    """A message value that no record can hold (wrong type, wrong range)."""


class BadConfig(TierMQError, ValueError):
    """A setting that does not exist or has an impossible value."""


class IllegalTransition(TierMQError):
    """A state transition that the state machine forbids."""


class TierError(TierMQError):
    """The tier (secondary storage) cannot do what was asked. Root of everything that `tiermq.tier` raises."""


class TierUnavailable(TierError):
    """The back end did not answer, or is temporarily unavailable. The only tier error that a retry may fix."""


class TierCredentials(TierError):
    """The back end rejects the credentials or the permission. Retries do not help; other credentials do."""


class BadTierUrl(TierError, ValueError):
    """The tier's URL is malformed, names an unknown scheme, or a bucket that does not exist."""


class BadTierName(TierError, ValueError):
    """A cluster, broker, topic or object name that cannot be part of a path in the tier."""


class SegmentMissing(TierError):
    """Nothing is stored under that segment's name."""


class SegmentConflict(TierError):
    """Another writer has written other bytes at that position. Nothing was written by this call."""


class BundlesFenced(SegmentConflict):
    """Another process has taken over the bundles of the broker's quiet queues. Nothing was written by this call."""


class SegmentSealed(TierError):
    """The segment is sealed and accepts no writes. Write to the next segment."""


class IllegalRange(TierError, ValueError):
    """A position or length outside of the segment: a read past its end, a write that would leave a hole."""


class CorruptSegment(TierError):
    """What is stored under a segment's name cannot be a segment: parts overlap, are missing, or have another length."""


class ManifestConflict(TierError):
    """A small object is not the expected version, so it was not replaced. Read it again before the next try."""


class StaleWriter(TierError):
    """A writer with a newer epoch owns the queue or the broker. This writer is fenced and must stop."""


class ForkedHistory(StaleWriter):
    """The tier has other messages than the local queue at the same offsets, from `offset` on. Neither is changed.

    `records` are the newest of both: the tier's and the queue's own.
    """

    def __init__(self, text: str, offset: int, records: tuple[bytes, bytes] = (b"", b"")) -> None:
        super().__init__(text)
        self.offset = offset
        self.records = records

    def __reduce__(self) -> tuple[type[ForkedHistory], tuple[str, int, tuple[bytes, bytes]]]:
        return type(self), (str(self), self.offset, self.records)


class FutureManifest(TierError):
    """A manifest of a newer format. Use a newer TierMQ; nothing was changed."""


class SparkError(TierMQError):
    """The pipeline on Spark cannot do what was asked. Root of what only `tiermq.spark` raises."""


class JavaMissing(SparkError):
    """No Java that is new enough for Spark."""


class BadOption(SparkError, ValueError):
    """An option of the source or the sink that does not exist, has an impossible value, or contradicts another."""


class BadSchema(SparkError, ValueError):
    """A schema that does not fit: a column that does not exist, is missing, or has another type."""


class ForeignCheckpoint(SparkError):
    """A checkpoint that was written by a query over another tier, store or set of topics."""


class StagingLost(SparkError):
    """A file that a task had staged for the commit is missing or is not what the task wrote. Nothing more was put."""


class SendOvertaken(TierUnavailable):
    """Another attempt of a task has sent the same messages of a replay. A new attempt continues after them."""


class DataLoss(TierMQError):
    """Requested messages are missing: expired, never copied, deleted or damaged. The text names them and the reason."""


class BadHistory(TierMQError, ValueError):
    """The sources of a history contradict each other, or a named queue or topic is in none of them."""


class UnknownColumn(TierMQError, ValueError):
    """A column that messages do not have."""


class RemotingError(TierMQError):
    """Root of errors in the communication with a peer."""


class NoNameServer(RemotingError):
    """None of the name servers can be reached."""


class BadFrame(RemotingError):
    """Bytes from the network that are not a frame of the protocol; the connection is closed."""


class TableConflict(SparkError):
    """Another writer committed to the table meanwhile. Nothing was committed; run the job again."""


class BadBody(SparkError, ValueError):
    """Invalid body decoding: the schema is invalid, or lacks the named message."""


class CannotListen(RemotingError, OSError):
    """One of a broker's ports cannot be had; the text names the port and its setting."""


class PeerGone(RemotingError):
    """The connection ended, or was never made, before the response. The peer may have executed the request."""


class RequestTimedOut(RemotingError):
    """The peer did not answer in time. It may have executed the request."""


class RequestRefused(RemotingError):
    """A request that is answered with an error: `code` is the response code, the text becomes the remark."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class NotConfirmed(RemotingError):
    """Messages are stored, but not yet flushed or replicated as the broker is configured to. `receipts` has where."""

    def __init__(self, text: str, receipts: list[Any] | None = None) -> None:
        super().__init__(text)
        self.receipts = receipts or []


class BadExpression(TierMQError, ValueError):
    """An invalid filter expression."""


class BadRequest(TierMQError, ValueError):
    """A request of an operator that cannot be understood, or that these sources cannot answer."""


class ChangeRefused(TierMQError):
    """A change that is not allowed here."""


TIER_REFUSALS = (TierCredentials, BadTierUrl)
"""Permanent errors: no such bucket, no permission, a bad signature."""


def install_hint(extra: str) -> str:
    """How to install what an optional part needs: by name where releases are found, and from a checkout."""
    return f"pip install 'tiermq[{extra}]', or in a checkout: pip install -e '.[{extra}]'"
