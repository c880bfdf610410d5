"""The embedded store for asyncio: `tiermq.AsyncStore`."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loop_runs import LOOP_RUNS, Run
from present import present
from tiermq import AsyncStore, LocalStore, Message, MessageStream, NotUploaded, PutResult, PutResults
from tiermq.errors import BadConfig, IllegalMessage, NotDurable, PutRefused, StoreClosed, StoreLocked
from tiermq.status import PutStatus


@pytest.fixture(params=LOOP_RUNS)
def run(request: pytest.FixtureRequest) -> Run:
    chosen: Run = request.param
    return chosen


def test_messages_are_put_read_and_found(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncStore(tmp_path) as store:
            results = await asyncio.gather(*(store.put(Message("orders", b"%d" % n)) for n in range(100)))
            assert [result.queue_offset for result in results] == list(range(100)), "in the order of the calls"
            await store.put_many([Message("orders", b"x", queue_id=1, keys=["k"])])
            assert [message.body for message in await store.query("orders", "k")] == [b"x"]
            assert len(await store.get("orders", 0, 98)) == 2
            assert len([message async for message in store.read("orders")]) == 101
            assert (await store.min_offset("orders"), await store.max_offset("orders")) == (0, 100)
            assert await store.offset_at("orders", 0, "1h") == 0
            assert await store.topics() == {"orders": [0, 1]}
            assert (await store.try_put(Message("a b", b""))).status is PutStatus.MESSAGE_ILLEGAL
            with pytest.raises(IllegalMessage):
                await store.put(Message("a b", b""))
            with pytest.raises(BadConfig, match="with a tier"):
                await store.flush_to_tier()
            await store.flush()
            assert repr(store).startswith("AsyncStore(LocalStore(")
        with pytest.raises(StoreClosed):
            store.store.put(Message("orders", b""))

    run(work())


def test_puts_that_wait_for_the_disk_share_its_flushes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with AsyncStore(tmp_path, flush_disk_type="SYNC_FLUSH") as store:
            local, waiting = store.store._local, itertools.count(1)
            flusher, when_durable = local._parts.flusher, local.when_durable
            before, all_wait = flusher.flush_count, asyncio.Event()
            loop = asyncio.get_running_loop()

            def counted(end_offset: int, call: Any) -> None:
                when_durable(end_offset, call)
                if next(waiting) == 200:
                    loop.call_soon_threadsafe(all_wait.set)

            with monkeypatch.context() as counting:
                counting.setattr(local, "when_durable", counted)
                with flusher._flush_lock:  # No flush begins before all of them wait.
                    puts = [asyncio.create_task(store.put(Message("orders", b"%d" % n))) for n in range(200)]
                    await all_wait.wait()
                results = await asyncio.gather(*puts)
            assert all(result.ok for result in results)
            assert local.flushed_where >= max(result.end_offset for result in results)
            assert flusher.flush_count - before <= 2
            await store.put_many([Message("orders", b""), Message("orders", b"")])
            with pytest.raises(PutRefused, match="1 of 2"):
                await store.put_many([Message("orders", b""), Message("a b", b"")])

    run(work())


def test_a_disk_that_does_not_confirm_raises(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with AsyncStore(tmp_path, flush_disk_type="SYNC_FLUSH") as store:
            local = store.store._local
            monkeypatch.setattr(local, "when_durable", lambda _end, call: call(PutStatus.FLUSH_DISK_TIMEOUT))
            with pytest.raises(NotDurable):
                await store.put(Message("orders", b""))

    run(work())


def test_the_loop_goes_on_while_a_put_waits(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The put hangs until the loop itself lets it go on: a loop that were blocked would never get there."""

    async def work() -> None:
        async with AsyncStore(tmp_path) as store:
            gate = threading.Event()
            put = store.store.put

            def slow(message: Message) -> Any:
                assert gate.wait(60)
                return put(message)

            monkeypatch.setattr(store.store, "put", slow)
            waiting = asyncio.create_task(store.put(Message("orders", b"coffee")))
            await asyncio.sleep(0)
            assert not waiting.done()
            assert await store.topics() == {}
            gate.set()
            assert (await waiting).ok

    run(work())


def test_waiting_readers_hold_no_thread(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncStore(tmp_path) as store:

            async def first(topic: str) -> bytes:
                async for message in store.read(topic, wait_s=60):
                    return bytes(message.body)
                return b""

            waiting = [asyncio.create_task(first(f"t{n}")) for n in range(40)]
            page = asyncio.create_task(store.get("page", wait_s=60))
            await asyncio.sleep(0)
            for n in range(40):
                await store.put(Message(f"t{n}", b"%d" % n))
            await store.put(Message("page", b"p"))
            assert await asyncio.gather(*waiting) == [b"%d" % n for n in range(40)]
            assert len(await page) == 1
            assert len(await store.get("page", 0, 1, wait_s=0.01)) == 0
            assert [message async for message in store.read("none", wait_s=0.01)] == []

    run(work())


def test_a_consumer_group_keeps_its_position(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncStore(tmp_path) as store:
            await store.put_many([Message("orders", b"%d" % n) for n in range(5)])
            async with store.consumer("orders", group="audit") as consumer:
                first = present(await consumer.receive())
                assert first.body == b"0"
                await consumer.retry(first, after_s=0)
                assert [message.body for message in await consumer.take(2)] == [b"1", b"2"]
                await consumer.commit()
                rest = sorted([message.body async for message in consumer])
                assert rest == [b"0", b"3", b"4"]
                assert await consumer.lag() == 0
                await consumer.seek("first")
                assert await consumer.lag() == 5
                again = present(await consumer.receive())
                await consumer.dead_letter(again)
            assert len(await store.get("%DLQ%audit")) == 1
            consumer = store.consumer("orders", group="audit", wait_s=0.01)
            assert len([message async for message in consumer]) == 4
            await consumer.close()

            async def fail() -> None:
                async with store.consumer("orders", group="other") as other:
                    async for _message in other:
                        raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            async with store.consumer("orders", group="other") as other:
                assert present(await other.receive()).body == b"0"

    run(work())


# Life.


class HeldOpening:
    """Openings begin, and wait in their thread until `go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.go, self.opened = threading.Event(), threading.Event(), threading.Event()
        self.count = 0
        make = LocalStore.open

        def held(*arguments: Any, **named: Any) -> LocalStore:
            self.count += 1
            self.began.set()
            assert self.go.wait(60)
            made = make(*arguments, **named)
            self.opened.set()
            return made

        monkeypatch.setattr(LocalStore, "open", held)

    async def cancel(self, *tasks: asyncio.Task[Any]) -> None:
        """While they wait for the opening; it goes on then."""
        await asyncio.to_thread(self.began.wait)
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0)
        self.go.set()
        for each in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(each, asyncio.CancelledError)
        await asyncio.to_thread(self.opened.wait)


def test_a_cancelled_opening_closes_what_it_opened(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        opening, store = HeldOpening(monkeypatch), AsyncStore(tmp_path)

        async def use() -> None:
            async with store:
                raise AssertionError

        await opening.cancel(asyncio.create_task(use()), asyncio.create_task(store.open()))
        assert opening.count == 1
        LocalStore.open(tmp_path).close()
        assert not (tmp_path / "abort").exists()
        async with store:  # It may be opened again.
            await store.put(Message("orders", b"0"))

    run(work())


def test_an_opening_whose_one_caller_is_cancelled_is_the_other_one_s(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        opening, store = HeldOpening(monkeypatch), AsyncStore(tmp_path)
        first, second = asyncio.create_task(store.open()), asyncio.create_task(store.open())
        await opening.cancel(first)
        assert await second is store
        assert (await store.put(Message("orders", b"0"))).ok
        await store.close()

    run(work())


def test_openings_at_the_same_time_are_one_and_share_its_error(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        store = AsyncStore(tmp_path)
        assert set(await asyncio.gather(store.open(), store.open())) == {store}
        other = AsyncStore(tmp_path)
        errors = await asyncio.gather(other.open(), other.open(), return_exceptions=True)
        assert [type(each) for each in errors] == [StoreLocked] * 2
        assert set(await asyncio.gather(store.close(), store.close())) == {None}
        async with other:  # An opening that failed is tried again.
            assert other.is_open

    run(work())


def test_a_close_beside_an_opening_closes_what_it_opens(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        held, store = HeldOpening(monkeypatch), AsyncStore(tmp_path)
        opening = asyncio.create_task(store.open())
        await asyncio.to_thread(held.began.wait)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        held.go.set()
        await closing
        with pytest.raises(StoreClosed):
            await opening
        LocalStore.open(tmp_path).close()

    run(work())


def test_a_cancelled_close_has_closed(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        store = await AsyncStore(tmp_path)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        LocalStore.open(tmp_path).close()
        assert await store.close() is None

    run(work())


def test_every_call_after_a_close_raises_that_it_is_closed(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        for kind in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            store = AsyncStore(tmp_path / kind, tier=tmp_path / f"{kind}.tier", flush_disk_type=kind)
            message = Message("o", b"0")
            with pytest.raises(StoreClosed, match="was opened"):
                await store.put(message)
            await store.open()
            await store.put(message)
            stream, consumer = store.read("o"), store.consumer("o", group="audit")
            other = store.consumer("o", group="other")
            assert present(await consumer.receive()).body == b"0"
            assert await store.close() == NotUploaded()
            calls: list[Callable[[], Awaitable[Any]]] = [
                *(partial(call, message) for call in (store.put, store.try_put)),
                *(partial(call, [message]) for call in (store.put_many, store.try_put_many)),
                *(partial(call, "o") for call in (store.get, store.max_offset, store.min_offset, store.delete_topics)),
                *(store.topics, store.flush, store.status, store.clean_now, store.flush_to_tier, store.refresh_tier),
                *(store.expire_now, store.reindex, store.open, partial(store.set_retention, "o")),
                *(partial(store.query, "o", "k"), partial(store.offset_at, "o", 0, 0), partial(store.message_at, 0)),
                *(stream.__anext__, stream.positions, consumer.receive, consumer.commit, consumer.lag),
                *(consumer.positions, other.receive, partial(store.get, "o", wait_s=60)),
            ]
            for call in calls:
                with pytest.raises(StoreClosed, match="closed"):
                    await call()
            for make in (partial(store.read, "o"), partial(store.consumer, "o", "audit")):
                with pytest.raises(StoreClosed, match="closed"):
                    make()
            await consumer.close()
            await other.close()
            await stream.close()
            assert not store.is_open
            assert repr(store).endswith("closed))")

    run(work())


@pytest.mark.parametrize("kind", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("steps", range(1, 7))
def test_a_put_beside_a_close_is_stored_or_raises_never_both(run: Run, tmp_path: Path, kind: str, steps: int) -> None:
    async def work() -> None:
        store = await AsyncStore(tmp_path, flush_disk_type=kind)
        puts: list[asyncio.Task[Any]] = [
            asyncio.create_task(store.put(Message("orders", b"%d" % n))) for n in range(20)
        ]
        puts += [asyncio.create_task(store.put_many([Message("orders", b"m")])) for _ in range(5)]
        for _ in range(steps):
            await asyncio.sleep(0)
        late = asyncio.create_task(store.put(Message("orders", b"late")))
        await store.close()
        assert [type(each) for each in await asyncio.gather(*puts)] == [PutResult] * 20 + [PutResults] * 5
        with pytest.raises(StoreClosed):
            await late
        with LocalStore.open(tmp_path) as again:
            assert [message.body for message in again.read("orders")] == [*(b"%d" % n for n in range(20)), *[b"m"] * 5]

    run(work())


def test_a_cancelled_put_leaves_the_others_and_the_close_alone(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        store = await AsyncStore(tmp_path, flush_disk_type="SYNC_FLUSH")
        puts = [asyncio.create_task(store.put(Message("orders", b"%d" % n))) for n in range(40)]
        for step in range(6):
            await asyncio.sleep(0)
            for task in puts[step::12]:
                task.cancel()
        await store.close()
        ended = await asyncio.gather(*puts, return_exceptions=True)
        with LocalStore.open(tmp_path) as again:
            stored = {message.body for message in again.read("orders")}
        assert {b"%d" % n for n, each in enumerate(ended) if not isinstance(each, BaseException)} <= stored
        assert {type(each) for each in ended} == {PutResult, asyncio.CancelledError}

    run(work())


def test_a_consumer_whose_block_is_cancelled_as_it_begins_leaves_its_group(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with AsyncStore(tmp_path) as store:
            opening, opened, ended = threading.Event(), threading.Event(), threading.Event()
            make = store.store.consumer

            def slow(*arguments: Any, **named: Any) -> Any:
                opening.set()
                assert opened.wait(60)
                made = make(*arguments, **named)
                ended.set()
                return made

            async def use() -> None:
                async with store.consumer("orders", group="audit"):
                    raise AssertionError

            with monkeypatch.context() as patched:
                patched.setattr(store.store, "consumer", slow)
                task = asyncio.create_task(use())
                await asyncio.to_thread(opening.wait)
                task.cancel()
                await asyncio.sleep(0)
                opened.set()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await asyncio.to_thread(ended.wait)
            async with store.consumer("orders", group="audit") as consumer:
                assert await consumer.lag() == 0

    run(work())


@pytest.mark.parametrize("steps", [0, 3, 30])
@pytest.mark.parametrize("which", ["stream", "consumer", "store"])
def test_a_reader_that_waits_ends_when_it_or_the_store_is_closed(
    run: Run, tmp_path: Path, which: str, steps: int
) -> None:
    async def work() -> None:
        async with AsyncStore(tmp_path) as store:
            stream = store.read("orders", wait_s=float("inf"))
            consumer = store.consumer("orders", group="audit", wait_s=float("inf"))
            reader: Any = consumer if which == "consumer" else stream
            arrivals = store.store._arrivals

            async def read() -> list[bytes]:
                return [message.body async for message in reader]

            reading = asyncio.create_task(read())
            while not arrivals._calls:
                await asyncio.sleep(0)
            for _ in range(steps):
                await asyncio.sleep(0)
            await (store if which == "store" else reader).close()
            assert await reading == []
            if which == "consumer":
                with pytest.raises(StoreClosed):
                    await consumer.receive(wait_s=60)
                async with store.consumer("orders", group="audit") as other:
                    assert await other.lag() == 0

    run(work())


def test_a_stream_has_its_position_by_what_it_gave(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncStore(tmp_path) as store:
            await store.put_many([Message("orders", b"%d" % n, queue_id=n % 2) for n in range(6)])
            stream = store.read("orders")
            assert await stream.positions() == {("orders", 0): 0, ("orders", 1): 0}
            given = [await anext(stream) for _ in range(3)]
            given += [present(await stream.next_now()), present(await stream.next_with_queue())[0]]
            of_first = sum(message.queue_id == 0 for message in given)
            assert await stream.positions() == {("orders", 0): of_first, ("orders", 1): 5 - of_first}
            await stream.close()
            assert [message async for message in stream] == []
            async with store.consumer("orders", group="audit") as consumer:
                await consumer.take(6)
                await consumer.commit()
                assert await consumer.positions() == {0: 3, 1: 3}
                assert (consumer.topic, consumer.retry_topic) == ("orders", "%RETRY%audit")

    run(work())


class Gate:
    """Holds the thread of the first read that has found a message, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.inside = self.inside_most = 0
        read, lock = MessageStream.next_with_queue, threading.Lock()

        def held(stream: MessageStream) -> Any:
            with lock:
                self.inside += 1
                self.inside_most = max(self.inside, self.inside_most)
            found = read(stream)
            if found is not None and not self.reached.is_set():
                self.reached.set()
                assert self.opened.wait(60)
            with lock:
                self.inside -= 1
            return found

        monkeypatch.setattr(MessageStream, "next_with_queue", held)

    async def cancel_inside(self, work: Coroutine[Any, Any, Any]) -> None:
        """Cancel it while its thread reads; the thread goes on when the gate is opened."""
        task = asyncio.create_task(work)
        await asyncio.to_thread(self.reached.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_a_receive_that_is_cancelled_inside_its_read_loses_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with AsyncStore(tmp_path) as store:
            await store.put_many([Message("orders", b"%d" % n) for n in range(5)])
            async with store.consumer("orders", group="audit") as consumer:
                gate = Gate(monkeypatch)
                await gate.cancel_inside(consumer.receive(wait_s=60))
                second = asyncio.create_task(consumer.take(3))
                third = asyncio.create_task(consumer.receive())
                await asyncio.sleep(0)
                gate.opened.set()
                assert [message.body for message in await second] == [b"0", b"1", b"2"], "in the order of the queue"
                assert present(await third).body == b"3"
                assert gate.inside_most == 1, "one thread at a time"
                await consumer.commit()
                assert await consumer.lag() == 1

    run(work())


def test_what_a_cancelled_receive_took_is_neither_consumed_nor_given(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with AsyncStore(tmp_path) as store:
            await store.put_many([Message("orders", b"%d" % n) for n in range(3)])
            async with store.consumer("orders", group="audit") as consumer:
                gate = Gate(monkeypatch)
                await gate.cancel_inside(consumer.take(2))
                gate.opened.set()
                await consumer.commit()
                assert await consumer.lag() == 3
            async with store.consumer("orders", group="audit") as consumer:
                assert [message.body async for message in consumer] == [b"0", b"1", b"2"]

    run(work())


def test_a_stream_that_is_cancelled_inside_its_read_goes_on_without_a_gap(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with AsyncStore(tmp_path) as store:
            await store.put_many([Message("orders", b"%d" % n) for n in range(5)])
            stream, gate = store.read("orders"), Gate(monkeypatch)
            await gate.cancel_inside(anext(stream))
            gate.opened.set()
            assert [message.body async for message in stream] == [b"%d" % n for n in range(5)]

    run(work())


@pytest.mark.parametrize("steps", range(6))
def test_a_waiting_receive_that_is_cancelled_beside_an_arrival_is_cancelled(
    run: Run, tmp_path: Path, steps: int
) -> None:
    """Wherever it is then: one that went on would keep its task, and whoever waits for its end, for ever."""

    async def work() -> None:
        async with AsyncStore(tmp_path) as store, store.consumer("orders", group="audit") as consumer:
            arrivals = store.store._arrivals
            receiving = asyncio.create_task(consumer.receive(wait_s=float("inf")))
            while not arrivals._calls:
                await asyncio.sleep(0)
            cells = [cell.cell_contents for cell in present(arrivals._calls[0].__closure__)]
            [arrived] = [each for each in cells if isinstance(each, asyncio.Event)]
            while not tuple(arrived._waiters):  # It has looked, found nothing, and waits.
                await asyncio.sleep(0)
            arrivals.note()
            for _ in range(steps):
                await asyncio.sleep(0)
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving

    run(work())


def test_a_consumer_whose_opening_is_cancelled_can_be_used_and_closed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with AsyncStore(tmp_path) as store:
            await store.put(Message("orders", b"0"))
            opening, opened = threading.Event(), threading.Event()
            make = store.store.consumer

            def slow(*arguments: Any, **named: Any) -> Any:
                opening.set()
                assert opened.wait(60)
                return make(*arguments, **named)

            monkeypatch.setattr(store.store, "consumer", slow)
            consumer = store.consumer("orders", group="audit")
            task = asyncio.create_task(consumer.receive())
            await asyncio.to_thread(opening.wait)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            closing = asyncio.create_task(consumer.close())
            await asyncio.sleep(0)
            opened.set()
            await closing
            async with store.consumer("orders", group="audit") as other:
                assert present(await other.receive()).body == b"0"

    run(work())


def test_refusals_under_sync_flush_are_statuses_and_block_no_other_put(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk confirms nothing until the end: a `try_put` that waited in the thread would hold the others."""

    async def work() -> None:
        async with AsyncStore(tmp_path, flush_disk_type="SYNC_FLUSH") as store:
            local, waiting = store.store._local, list[Any]()
            monkeypatch.setattr(local, "when_durable", lambda _end, call: waiting.append(call))
            one = asyncio.create_task(store.try_put(Message("orders", b"0")))
            many = asyncio.create_task(store.try_put_many([Message("orders", b"1"), Message("a b", b"")]))
            raises = asyncio.create_task(store.put(Message("orders", b"2")))
            while len(waiting) < 3:
                await asyncio.sleep(0)
            for call in waiting:
                call(PutStatus.FLUSH_DISK_TIMEOUT)
            assert (await one).status is PutStatus.FLUSH_DISK_TIMEOUT
            assert [each.status for each in await many] == [PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.MESSAGE_ILLEGAL]
            with pytest.raises(NotDurable):
                await raises

    run(work())


def test_it_opens_by_await_and_with_a_tier(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        store = await AsyncStore(tmp_path / "s", tier=tmp_path / "t")
        await store.put(Message("orders", b"coffee"))
        assert await store.flush_to_tier()
        assert present(await store.close()).messages == 0
        closed = AsyncStore(tmp_path / "x")
        assert "not open" in repr(closed)
        with pytest.raises(StoreClosed, match="opened"):
            await closed.put(Message("orders", b""))
        await closed.close()

    run(work())
    with LocalStore.open(tmp_path / "s") as local:
        assert len(local.get("orders")) == 1
