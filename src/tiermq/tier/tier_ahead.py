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

Costs one listing of the broker's directory: a request for each 1,000 objects.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import StoreDamaged, TierError
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import TopicStatus
from tiermq.tier.names import QueueKey, SegmentType, broker_directory

_log = logging.getLogger(__name__)

NAMED_MAX = 5  # Queues that an error names.
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
) -> list[QueueAhead] | None:
    """The same, asked of the tier; None when it did not answer in time, which holds nobody up for longer.

    Raises LeaseHeld when somebody else holds the `lease`, if one is given.
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
    return find_ahead(answer, metadata, local_end, follows=follows)


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
