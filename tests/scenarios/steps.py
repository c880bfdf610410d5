"""Scenarios: a list of actions and expectations, played one after the other on a BrokerWorld.

    play(world, [Produce(50), TierNow(), EraseBrokerDisk(), Reopen(restore=True), ExpectEverything()])

A step that fails names its number. Every scenario can be played with a restart, or with a kill, between any two steps:
`with_between(steps, Kill)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from scenarios.broker_world import HOUR_MS, BrokerWorld, Sent
from servers.faulty_driver import Down
from tiermq.errors import TierError


class Step(Protocol):
    def run(self, world: BrokerWorld) -> None: ...


def play(world: BrokerWorld, steps: Iterable[Step]) -> None:
    """All steps in order; the broker is let go of at the end, however it ends."""
    try:
        for number, step in enumerate(steps):
            try:
                step.run(world)
            except BaseException as error:
                error.add_note(f"in step {number}: {step}")
                raise
    finally:
        if isinstance(getattr(world.driver, "plan", None), Down):
            world.driver.plan = None
        world.bury()


def with_between(steps: Sequence[Step], between: Callable[[], Sequence[Step]]) -> Iterator[Step]:
    """The steps, with others between each two."""
    for number, step in enumerate(steps):
        if number > 1:
            yield from between()
        yield step


# Actions


@dataclass
class Open:
    settings: dict[str, Any] = field(default_factory=dict)

    def run(self, world: BrokerWorld) -> None:
        world.open(**self.settings)


@dataclass
class Close:
    def run(self, world: BrokerWorld) -> None:
        world.close()


@dataclass
class Reopen:
    restore: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    def run(self, world: BrokerWorld) -> None:
        world.close()
        world.open(restore=self.restore, **self.settings)


@dataclass
class KillWriter:
    """kill -9, and the next process."""

    def run(self, world: BrokerWorld) -> None:
        world.kill()
        world.open()


@dataclass
class EraseBrokerDisk:
    def run(self, world: BrokerWorld) -> None:
        world.erase_disk()


@dataclass
class Produce:
    count: int
    topic: str = "orders"
    queue_id: int = 0
    fields: dict[str, Any] = field(default_factory=dict)

    def run(self, world: BrokerWorld) -> None:
        world.put(self.count, self.topic, self.queue_id, **self.fields)


@dataclass
class TierNow:
    succeeds: bool = True

    def run(self, world: BrokerWorld) -> None:
        assert world.store.flush_to_tier() is self.succeeds, world.store.status()
        if self.succeeds and world.store.tier.index is not None:
            world.store.tier.index.run_once()


@dataclass
class MoveClock:
    ms: int

    def run(self, world: BrokerWorld) -> None:
        world.clock.advance_ms(self.ms)


@dataclass
class ExpireLocal:
    """Local files are old enough to go; so many do (None: one at least)."""

    removed: int | None = None

    def run(self, world: BrokerWorld) -> None:
        world.clock.advance_ms(73 * HOUR_MS)
        removed = world.evict()
        assert removed > 0 if self.removed is None else removed == self.removed


@dataclass
class ExpireTier:
    """Retention runs; as many segments go as the time that has passed asks for."""

    def run(self, world: BrokerWorld) -> None:
        report = world.store.expire_now()
        assert report.failures == []


@dataclass
class BackEndDown:
    def run(self, world: BrokerWorld) -> None:
        world.driver.plan = Down()


@dataclass
class BackEndUp:
    def run(self, world: BrokerWorld) -> None:
        world.driver.plan = None


@dataclass
class Pause:
    def run(self, world: BrokerWorld) -> None:
        assert world.store.tier.engine.pause()


@dataclass
class Resume:
    def run(self, world: BrokerWorld) -> None:
        world.store.tier.engine.resume()


@dataclass
class Lost:
    """From here on these messages are not expected any more."""

    from_offset: int
    to_offset: int
    topic: str = "orders"
    queue_id: int = 0

    def run(self, world: BrokerWorld) -> None:
        queue = world.sent[self.topic, self.queue_id]
        queue[:] = [sent for sent in queue if not self.from_offset <= sent.offset < self.to_offset]


# Expectations


@dataclass
class ExpectMessages:
    """Every message that was put, byte for byte and in order, of every queue; nothing else."""

    def run(self, world: BrokerWorld) -> None:
        for (topic, queue_id), sent in world.sent.items():
            found = [
                Sent(m.queue_offset, m.body, tuple(m.keys), m.tags or "", m.store_timestamp_ms)
                for m in world.read(topic, queue_id)
            ]
            assert found == sent, (topic, queue_id, _difference(found, sent))


@dataclass
class ExpectTimes:
    """Every store time leads to the first, and to the last, message that has it."""

    def run(self, world: BrokerWorld) -> None:
        for (topic, queue_id), sent in world.sent.items():
            for time_ms in {message.store_ms for message in sent}:
                same = [message.offset for message in sent if message.store_ms == time_ms]
                answers = [world.store.offset_at(topic, queue_id, time_ms, end) for end in ("lower", "upper")]
                assert answers == [same[0], same[-1]], (topic, queue_id, time_ms)
                assert world.store.store_time_of(topic, queue_id, same[0]) == time_ms
            if sent:
                assert world.store.earliest_time(topic, queue_id) == sent[0].store_ms
                assert world.store.store_time_of(topic, queue_id, sent[-1].offset) == sent[-1].store_ms


@dataclass
class ExpectKeys:
    """Each message is found by its own key, and the newest by a key that all have, each once, in order."""

    def run(self, world: BrokerWorld) -> None:
        by_topic: dict[str, list[tuple[int, int, Sent]]] = {}
        for (topic, queue_id), sent in world.sent.items():
            by_topic.setdefault(topic, []).extend((m.store_ms, queue_id, m) for m in sent)
        for topic, messages in by_topic.items():
            messages.sort(key=lambda each: (each[0], each[1], each[2].offset))
            for _, queue_id, message in messages[:: max(1, len(messages) // 8)]:
                found = world.store.query(topic, message.keys[0]).messages
                assert [(m.queue_id, m.queue_offset, m.body) for m in found] == [
                    (queue_id, message.offset, message.body)
                ]
            found = world.store.query(topic, f"all-{topic}", max_messages=16).messages
            order = [(m.store_timestamp_ms, m.queue_id, m.queue_offset) for m in found]
            newest = messages[-16:]
            assert len(set(order)) == len(newest)
            assert order == sorted(order)
            assert set(order) <= {(time_ms, queue_id, m.offset) for time_ms, queue_id, m in messages}
            # The index counts time in seconds: among messages of one second, any may count as the newest.
            assert order[0][0] > newest[0][0] - 1_000


@dataclass
class ExpectEverything:
    def run(self, world: BrokerWorld) -> None:
        for step in (ExpectMessages(), ExpectTimes(), ExpectKeys()):
            step.run(world)


@dataclass
class ExpectOffsets:
    low: int
    high: int
    topic: str = "orders"
    queue_id: int = 0

    def run(self, world: BrokerWorld) -> None:
        bounds = tuple(f(self.topic, self.queue_id) for f in (world.store.min_offset, world.store.max_offset))
        assert bounds == (self.low, self.high)


@dataclass
class ExpectLocalMin:
    """The local store alone begins at this queue offset or later."""

    at_least: int
    topic: str = "orders"
    queue_id: int = 0

    def run(self, world: BrokerWorld) -> None:
        assert world.store.local.min_offset(self.topic, self.queue_id) >= self.at_least


@dataclass
class ExpectTierHolds:
    """The tier alone has [low, high), without a gap but the given ones."""

    low: int
    high: int
    topic: str = "orders"
    queue_id: int = 0
    gaps: tuple[tuple[int, int], ...] = ()

    def run(self, world: BrokerWorld) -> None:
        file = world.store.tier.files.find(self.topic, self.queue_id)
        assert file is not None
        assert (file.min_offset, file.commit_offset) == (self.low, self.high)
        assert tuple((gap.from_offset, gap.to_offset) for gap in file.gaps()) == self.gaps


@dataclass
class ExpectTierError:
    """Reading at an offset is an error, because only the tier has it."""

    offset: int
    topic: str = "orders"
    queue_id: int = 0

    def run(self, world: BrokerWorld) -> None:
        try:
            page = world.store.get(self.topic, self.queue_id, self.offset)
        except TierError:
            return
        raise AssertionError(f"expected an error, found {page}")


@dataclass
class ExpectStatus:
    """What an operator sees of the tier."""

    holds: Callable[[dict[str, Any]], bool]

    def run(self, world: BrokerWorld) -> None:
        status: Any = world.store.status()["tier"]
        assert self.holds(status), status


def _difference(found: Sequence[Sent], sent: Sequence[Sent]) -> str:
    missing = [m.offset for m in sent if m not in found]
    extra = [m.offset for m in found if m not in sent]
    return f"missing {missing[:20]}, unexpected {extra[:20]}, {len(found)} found of {len(sent)}"
