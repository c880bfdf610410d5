"""What a wave of an offload takes of each queue, and how it is parted into tasks. Functions of values, nothing else.

A wave has a limit in bytes and in messages, over all queues: it bounds what a crash leaves to be looked at again, how
long a commit waits, and how many keys are on their way to the index at once. Small backlogs are taken whole, large ones
share what is left alike, so that one queue with years of history does not keep the others waiting.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tiermq.spark.jobs.offload_values import OffloadSettings, QueueWork


@dataclass(frozen=True, slots=True)
class Backlog:
    """Messages of a queue that wait, and about how many bytes they have."""

    messages: int
    bytes: int


def share(backlogs: Sequence[Backlog], settings: OffloadSettings) -> list[int]:
    """How many messages of each backlog a wave takes; one at least of each, as far as the wave reaches."""
    taken = [0] * len(backlogs)
    bytes_left, messages_left = settings.wave_bytes, settings.wave_messages
    in_order = sorted(range(len(backlogs)), key=lambda number: backlogs[number].bytes)
    for done, number in enumerate(in_order):
        backlog, others = backlogs[number], len(backlogs) - done
        if bytes_left <= 0 or messages_left <= 0:
            break
        by_bytes = backlog.messages
        if backlog.bytes > bytes_left // others:
            by_bytes = backlog.messages * (bytes_left // others) // backlog.bytes
        count = max(1, min(backlog.messages, by_bytes, messages_left // others, settings.queue_messages))
        taken[number] = count
        messages_left -= count
        bytes_left -= backlog.bytes * count // backlog.messages
    return taken


def part(works: Sequence[QueueWork], parallelism: int, settings: OffloadSettings) -> list[tuple[QueueWork, ...]]:
    """The works in groups of about the same number of bytes, the heaviest group first.

    Two groups for each processor, if there is enough to do: one slow task then does not leave the others idle for long.
    """
    total = sum(work.bytes for work in works)
    count = max(1, min(2 * parallelism, len(works), -(-total // settings.task_bytes)))
    if count < parallelism:
        count = max(count, min(parallelism, len(works), total // (settings.task_bytes // 4)))
    groups: list[list[QueueWork]] = [[] for _ in range(max(1, count))]
    lightest = [(0, number) for number in range(len(groups))]
    for work in sorted(works, key=lambda each: each.bytes, reverse=True):
        weight, number = heapq.heappop(lightest)
        groups[number].append(work)
        heapq.heappush(lightest, (weight + max(1, work.bytes), number))
    full = [group for group in groups if group]
    full.sort(key=lambda group: sum(work.bytes for work in group), reverse=True)
    return [tuple(sorted(group, key=lambda work: work.queue)) for group in full]


def cut(work: QueueWork, messages: int) -> QueueWork:
    """The work with fewer messages."""
    whole = work.to_offset - work.from_offset
    return replace(work, to_offset=work.from_offset + messages, bytes=work.bytes * messages // max(1, whole))
