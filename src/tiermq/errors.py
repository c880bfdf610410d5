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


class StoreNotRecovered(StoreError):
    """The process that used the directory died, and nobody has opened it since: its files may say too much."""


class DiskFull(StoreError):
    """The file system has no room for the bytes that were about to be written. Nothing was written."""


class TooManyOpenFiles(StoreError):
    """A limit on descriptors or maps leaves none for one more file. Nothing was written; it can be tried again."""


class ReadOnlyStore(StoreError):
    """The directory cannot be written by this process."""


class IllegalMessage(TierMQError, ValueError):
    """A message value that no record can hold (wrong type, wrong range)."""


class BadConfig(TierMQError, ValueError):
    """A setting that does not exist or has an impossible value."""


class IllegalTransition(TierMQError):
    """A state machine was asked to move in a direction that it forbids."""


class TierError(TierMQError):
    """The tier (secondary storage) cannot do what was asked. Root of everything that `tiermq.tier` raises."""


class TierUnavailable(TierError):
    """The back end did not answer, or answered that it cannot now. The one tier error that trying again may cure."""


class TierCredentials(TierError):
    """The back end knows us not, or does not let us do this. Trying again does not help; other credentials do."""


class BadTierUrl(TierError, ValueError):
    """The tier's URL is malformed, names an unknown scheme, or a bucket that does not exist."""


class BadTierName(TierError, ValueError):
    """A cluster, broker, topic or object name that cannot be part of a path in the tier."""


class SegmentMissing(TierError):
    """Nothing is stored under that segment's name."""


class SegmentConflict(TierError):
    """Someone else has written other bytes at that position. Nothing of ours was written."""


class SegmentSealed(TierError):
    """The segment takes no more writes, for ever. Write to the next one."""


class IllegalRange(TierError, ValueError):
    """A position or length outside of the segment: a read past its end, a write that would leave a hole."""


class CorruptSegment(TierError):
    """What is stored under a segment's name cannot be a segment: parts overlap, are missing, or have another length."""


class ManifestConflict(TierError):
    """A small object is not the one that was expected, so it was not replaced. Read it again and decide anew."""


class StaleWriter(TierError):
    """A writer with a newer epoch owns the queue or the broker. This writer must stop: it is never let in again."""


class ForkedHistory(StaleWriter):
    """The tier has other messages than the local queue under its numbers, from `offset` on. Neither is changed."""

    def __init__(self, text: str, offset: int) -> None:
        super().__init__(text)
        self.offset = offset

    def __reduce__(self) -> tuple[type[ForkedHistory], tuple[str, int]]:
        return type(self), (str(self), self.offset)


class FutureManifest(TierError):
    """A manifest of a format newer than this program knows. Use the newer program; nothing was changed."""


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
    """A file that a task had staged for the commit is gone or is not what the task wrote. Nothing more was put."""


class DataLoss(TierMQError):
    """Messages that were asked for are not there: expired, never copied, deleted or damaged. It says which and why."""


class BadHistory(TierMQError, ValueError):
    """The places of a history do not fit together, or a queue or topic that was named is in none of them."""


class UnknownColumn(TierMQError, ValueError):
    """A column that messages do not have."""


class RemotingError(TierMQError):
    """Something about talking to a peer."""


class BadFrame(RemotingError):
    """Bytes from the network that are no frame of the protocol; the connection is closed."""


class TableConflict(SparkError):
    """Somebody else has committed to the table meanwhile. Nothing of ours is in it; run the job again."""


class BadBody(SparkError, ValueError):
    """How bodies are to be decoded cannot be understood: a schema that is none, or a message that it does not have."""


class PeerGone(RemotingError):
    """The connection ended, or was never made, before an answer came. Whether the peer did what was asked is open."""


class RequestTimedOut(RemotingError):
    """The peer did not answer in time. Whether it did what was asked is open."""


class RequestRefused(RemotingError):
    """A request that is answered with an error: `code` is the response code, the text becomes the remark."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class BadExpression(TierMQError, ValueError):
    """A filter expression that cannot be understood."""


TIER_REFUSALS = (TierCredentials, BadTierUrl)
"""What does not pass by itself: no such bucket, no permission, a bad signature."""
