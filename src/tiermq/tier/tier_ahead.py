"""What a tier has of a broker that the broker's own disk does not know of: found when a store is opened.

A local store reaches as far as its tier at every start: only what is durable locally is copied, and what the metadata
know of the tier is counted as taken. One that does not is an older copy of the disk (a backup, a snapshot), metadata
from an older copy, or an empty disk in the place of a lost one. It must not give the numbers out that the tier has
given to other messages already:

    tier    0 ............................ 700          local store   0 ............ 300
                                                        the next message would be 300, a second time

    tier ahead of the local queue       the tier has units behind the queue's next offset
    tier ahead of the metadata          the tier has a segment behind all that the metadata know of the queue; says
                                        nothing where a job writes the metadata: it does so after the segments

A store that used numbers of the tier's messages already has other messages than the tier under the same numbers,
whatever its metadata know. `may_differ` finds those queues by what is on the disk; their messages are compared.

Costs one listing of the broker's directory: a request for each 1,000 objects.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import StoreDamaged, TierError
from tiermq.store.local_store import LocalStore
from tiermq.store.tier_continuation import NAMED_MAX
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.known_tier import is_listed, require_known_tier
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import TopicStatus
from tiermq.tier.names import QueueKey, SegmentType, broker_directory

_log = logging.getLogger(__name__)

_TYPES = (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE)


@dataclass(frozen=True, slots=True)
class QueueAhead:
    """A queue of which the tier knows more. Both ends are queue offsets: of the next message, as each side has it."""

    key: QueueKey
    tier_end: int
    local_end: int

    def __str__(self) -> str:
        return f"{self.key.topic}-{self.key.queue_id} (tier {self.tier_end}, local {self.local_end})"


def find_ahead(
    infos: Iterable[SegmentInfo],
    metadata: MetadataStore,
    local_end: Callable[[str, int], int],
    *,
    follows: bool = False,
) -> list[QueueAhead]:
    """The queues of a listing of which the tier knows more than the local queue, or than the metadata."""
    by_queue: dict[QueueKey, list[SegmentInfo]] = defaultdict(list)
    for info in infos:
        if info.key.type in _TYPES:
            by_queue[info.key.queue].append(info)
    deleting = {topic.name for topic in metadata.topics() if topic.status == TopicStatus.DELETING}
    found = []
    for key, listed in sorted(by_queue.items()):
        if key.topic in deleting:
            continue
        rows = {segment_type: metadata.segments(key, segment_type) for segment_type in _TYPES}
        ends = {segment_type: max((row.end for row in own), default=0) for segment_type, own in rows.items()}
        known = {row.key for own in rows.values() for row in own}
        units = [info for info in listed if info.key.type is SegmentType.CONSUME_QUEUE]
        tier_end = max(((info.key.base + info.size) // UNIT_BYTES for info in units), default=0)
        here = max(local_end(key.topic, key.queue_id), ends[SegmentType.CONSUME_QUEUE] // UNIT_BYTES)
        is_unknown = not follows and any(
            info.size and info.key not in known and info.key.base >= ends[info.key.type] for info in listed
        )
        if tier_end > here or is_unknown:
            found.append(QueueAhead(key, tier_end, local_end(key.topic, key.queue_id)))
    return found


def ask_ahead(
    driver: TierDriver,
    metadata: MetadataStore,
    local_end: Callable[[str, int], int],
    cluster: str,
    broker: str,
    timeout_s: float,
    *,
    lease: BrokerLease | None,
    follows: bool,
    root: Path,
) -> list[QueueAhead] | None:
    """The same, asked of the tier; None when it did not answer in time, which delays no start for longer.

    Raises LeaseHeld when another process holds the `lease`, if one is given, and TierError when the tier has nothing of
    what the metadata of the store in `root` say is there.
    """
    answers: list[list[SegmentInfo] | TierError] = []

    def ask() -> None:
        try:
            if lease is not None:
                lease.require_free()
            answers.append(list(driver.list_segments(broker_directory(cluster, broker) + "/")))
        except TierError as error:
            answers.append(error)

    if timeout_s > 0:
        asking = threading.Thread(target=ask, name="tier-ahead", daemon=True)
        asking.start()
        asking.join(timeout_s)
    else:
        ask()
    answer = answers[0] if answers else TierError(f"{driver.url}: no answer within {timeout_s:g} s")
    if isinstance(answer, LeaseHeld):
        raise answer
    if isinstance(answer, TierError):
        _log.warning(
            "the store was not compared with its tier: %s. If its disk is an older copy, stop: messages would get "
            "numbers that the tier has given to others", answer,
        )  # fmt: skip
        return None
    if not is_listed({info.key: info.size for info in answer}, metadata):
        require_known_tier(driver, metadata, str(root))
    return find_ahead(answer, metadata, local_end, follows=follows)


def may_differ(local: LocalStore, metadata: MetadataStore, queue: QueueKey, tier_end: int) -> list[int]:
    """Offsets of messages that both sides have and that must be compared; none where both are surely the same.

    A store that wrote its tier is never behind it, unless it has no message at all, and the times in the metadata are
    those of its own messages. Costs no request.
    """
    name = queue.topic, queue.queue_id
    low, high = max(0, local.min_offset(*name)), min(tier_end, local.max_offset(*name))
    if low >= high:
        return []
    entry = metadata.last_time_entry(queue)
    at = entry.queue_offset if entry is not None and low <= entry.queue_offset < high else None
    if at is not None and entry is not None:
        known = [message for message in local.get(*name, at, 1).messages if message.queue_offset == at]
        if known and known[0].store_timestamp_ms != entry.store_ms:
            return sorted({low, at, high - 1})
    return sorted({low, high - 1}) if high < tier_end else []


def refusal(root: object, url: str, ahead: Sequence[QueueAhead], *, follows: bool) -> StoreDamaged:
    """Why a store that knows nothing of its tier, or may not learn it, is not opened; and what to do."""
    named = ", ".join(map(str, ahead[:NAMED_MAX])) + (f" and {len(ahead) - NAMED_MAX} more" * (len(ahead) > NAMED_MAX))
    way = (
        "Open it once with tierDispatchEnable=true, which takes the tier's history over"
        if follows
        else f"To go on with that history: `tiermq tier restore {url} --store DIR` into an empty directory, or open "
        "the store with restore=True. To begin another one: give another brokerName or another tier"
    )
    return StoreDamaged(
        f"{root}: expected a store that knows what {url} has of this broker, found one that knows less of "
        f"{len(ahead)} queue(s): {named}. New messages would get numbers that others have there. {way}"
    )
