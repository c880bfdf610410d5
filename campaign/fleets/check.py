"""What must be true of the tier after anything that happened to a fleet.

Every acknowledged message is there once, at the offset that the broker acknowledged, in the order of the producer; it
is found by its time and by its key; no other message is there twice, and no offset is missing.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from campaign.fleets.load import Acknowledged, Queue
from tiermq.history.catalog import Catalog, read_catalog
from tiermq.history.key_lookup import plan_history
from tiermq.history.open_history import open_history
from tiermq.history.reading import read_task
from tiermq.history.scan_values import HistoryPlace, OffsetBounds, ScanCounters, ScanRequest
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.tier.names import QueueKey

SAMPLES = 3
"""Messages of each load that are looked for by time and by key."""


@dataclass(slots=True)
class TierCheck:
    """What was seen of the tier by all rounds until now. Used by one thread."""

    tier: str
    topic: str
    checked: dict[Queue, int] = field(default_factory=dict)
    """How far each queue was read by earlier rounds."""
    loads: list[Acknowledged] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    messages_checked: int = 0
    keys_asked: int = 0
    times_asked: int = 0

    @property
    def _request(self) -> ScanRequest:
        return ScanRequest(topics=frozenset({self.topic}))

    def ends(self) -> dict[Queue, int]:
        """Behind the newest message of each queue that a reader of the tier finds."""
        with open_history(HistoryPlace(self.tier)) as history:
            return {_name(queue.key): queue.cold_max for queue in read_catalog(history, self._request).queues()}

    def has(self, load: Acknowledged) -> bool:
        """Whether the tier reaches behind every message of the load."""
        ends = self.ends()
        return all(ends.get(queue, 0) > max(numbers) for queue, numbers in load.numbers.items())

    def check(self, load: Acknowledged, chance: random.Random) -> list[str]:
        """What is wrong with what came since the last check."""
        self.loads.append(load)
        problems = list(load.problems)
        with open_history(HistoryPlace(self.tier)) as history:
            catalog = read_catalog(history, self._request)
            bounds = {
                each.key: OffsetBounds(self.checked.get(_name(each.key), 0), each.cold_max) for each in catalog.queues()
            }
            found = self._read(catalog, replace(self._request, bounds=bounds))
            for queue, messages in found.items():
                problems += self._check_queue(queue, messages, self.checked.get(queue, 0), [load])
                again = [message.keys[0] for message in messages if message.keys[0] in self.keys]
                self.keys.update(message.keys[0] for message in messages)
                if again:
                    problems.append(f"{queue}: messages of earlier rounds are there again, such as {again[0]}")
                self.checked[queue] = self.checked.get(queue, 0) + len(messages)
            missing = [queue for queue in load.numbers if queue not in found]
            problems += [f"{queue}: nothing of this round is in the tier" for queue in missing]
            if not problems:
                problems = self._find(catalog, load, found, chance)
        return problems

    def check_all(self) -> list[str]:
        """The same of everything from the first round on."""
        problems = []
        with open_history(HistoryPlace(self.tier)) as history:
            found = self._read(read_catalog(history, self._request), self._request)
        for queue, messages in found.items():
            problems += self._check_queue(queue, messages, 0, self.loads)
        if sum(map(len, found.values())) < len(self.keys):
            problems.append(f"{len(self.keys)} messages were there, and now {sum(map(len, found.values()))} are")
        return problems

    def _check_queue(
        self, queue: Queue, messages: list[StoredMessage], begin: int, loads: Iterable[Acknowledged]
    ) -> list[str]:
        self.messages_checked += len(messages)
        offsets = [message.queue_offset for message in messages]
        if offsets != list(range(begin, begin + len(messages))):
            return [f"{queue}: expected every offset from {begin} on, found {_jumps(offsets, begin)}"]
        keys = [message.keys[0] for message in messages]
        if len(set(keys)) < len(keys):
            twice = sorted({key for key in keys if keys.count(key) > 1})
            return [f"{queue}: {len(twice)} messages are there twice, such as {twice[0]}"]
        torn = [message.keys[0] for message in messages if not message.body.startswith(message.keys[0].encode() + b" ")]
        problems = [f"{queue}: the body of {torn[0]} is another message's"] if torn else []
        for load in loads:
            at = load.numbers.get(queue, {})
            lost = [
                offset
                for offset in at
                if not begin <= offset < begin + len(keys) or keys[offset - begin] != load.key(queue, offset)
            ]
            if lost:
                problems.append(f"{queue}: {len(lost)} of {len(at)} acknowledged are not at their offset: {lost[:5]}")
            numbers = [at[offset] for offset in sorted(at)]
            if numbers != sorted(numbers):
                problems.append(f"{queue}: messages are not in the order in which they were acknowledged")
        return problems

    def _find(
        self, catalog: Catalog, load: Acknowledged, found: dict[Queue, list[StoredMessage]], chance: random.Random
    ) -> list[str]:
        """By time and by key."""
        problems, everything = [], [message for messages in found.values() for message in messages]
        for _ in range(SAMPLES):
            queue = chance.choice(sorted(load.numbers))
            key = load.key(queue, chance.choice(sorted(load.numbers[queue])))
            asked = self._read(catalog, replace(self._request, keys=frozenset({key})))
            places = [name for name, messages in asked.items() for message in messages if key in message.keys]
            self.keys_asked += 1
            if places != [queue]:
                problems.append(f"key {key} of {queue} is found in {places}")
            at_ms = next(message.store_timestamp_ms for message in everything if key in message.keys)
            asked = self._read(catalog, replace(self._request, begin_ms=at_ms, end_ms=at_ms))
            self.times_asked += 1
            by_time = {
                message.keys[0] for messages in asked.values() for message in messages
                if message.store_timestamp_ms == at_ms
            }  # fmt: skip
            expected = {message.keys[0] for message in everything if message.store_timestamp_ms == at_ms}
            if not expected <= by_time:
                problems.append(f"time {at_ms} has {sorted(by_time)}, without {sorted(expected - by_time)}")
        return problems

    def _read(self, catalog: Catalog, request: ScanRequest) -> dict[Queue, list[StoredMessage]]:
        found: dict[Queue, list[StoredMessage]] = {}
        for task in plan_history(catalog, request).tasks:
            messages = found.setdefault(_name(task.queue), [])
            for run in read_task(catalog.history, task, ScanCounters()):
                for start, size in zip(run.starts, run.sizes, strict=True):
                    record = bytes(run.buffer[start : start + size])
                    messages.append(decode_record(record, expect_physical_offset=run.log_base + int(start)))
        return found


def _name(key: QueueKey) -> Queue:
    return key.broker, key.queue_id


def _jumps(offsets: list[int], begin: int) -> str:
    for expected, offset in enumerate(offsets, begin):
        if offset != expected:
            return f"{offset} in place of {expected}, {len(offsets)} in all"
    return "none"
