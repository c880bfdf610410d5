"""The embedded store for asyncio: `tiermq.AsyncStore`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tiermq import AsyncStore, LocalStore, Message
from tiermq.errors import IllegalMessage, NotDurable, PutRefused, StoreClosed
from tiermq.status import PutStatus


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_messages_are_put_read_and_found(tmp_path: Path) -> None:
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
            with pytest.raises(StoreClosed, match="with a tier"):
                await store.flush_to_tier()
            await store.flush()
            assert repr(store).startswith("AsyncStore(LocalStore(")
        with pytest.raises(StoreClosed):
            store.store.put(Message("orders", b""))

    run(work())


def test_puts_that_wait_for_the_disk_share_its_flushes(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncStore(tmp_path, flush_disk_type="SYNC_FLUSH") as store:
            local = store.store._local
            before = local._parts.flusher.flush_count
            results = await asyncio.gather(*(store.put(Message("orders", b"%d" % n)) for n in range(200)))
            assert all(result.ok for result in results)
            assert local.flushed_where >= max(result.end_offset for result in results)
            assert local._parts.flusher.flush_count - before < 150
            await store.put_many([Message("orders", b""), Message("orders", b"")])
            with pytest.raises(PutRefused, match="1 of 2"):
                await store.put_many([Message("orders", b""), Message("a b", b"")])

    run(work())


def test_a_disk_that_does_not_confirm_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with AsyncStore(tmp_path, flush_disk_type="SYNC_FLUSH") as store:
            local = store.store._local
            monkeypatch.setattr(local, "when_durable", lambda _end, call: call(PutStatus.FLUSH_DISK_TIMEOUT))
            with pytest.raises(NotDurable):
                await store.put(Message("orders", b""))

    run(work())


def test_the_loop_goes_on_while_a_put_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_waiting_readers_hold_no_thread(tmp_path: Path) -> None:
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


def test_a_consumer_group_keeps_its_position(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncStore(tmp_path) as store:
            await store.put_many([Message("orders", b"%d" % n) for n in range(5)])
            async with store.consumer("orders", group="audit") as consumer:
                first = await consumer.receive()
                assert first.body == b"0"
                await consumer.retry(first, after_s=0)
                assert [message.body for message in await consumer.take(2)] == [b"1", b"2"]
                await consumer.commit()
                rest = sorted([message.body async for message in consumer])
                assert rest == [b"0", b"3", b"4"]
                assert await consumer.lag() == 0
                await consumer.seek("first")
                assert await consumer.lag() == 5
                again = await consumer.receive()
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
                assert (await other.receive()).body == b"0"

    run(work())


def test_it_opens_by_await_and_with_a_tier(tmp_path: Path) -> None:
    async def work() -> None:
        store = await AsyncStore(tmp_path / "s", tier=tmp_path / "t")
        await store.put(Message("orders", b"coffee"))
        assert await store.flush_to_tier()
        assert (await store.close()).messages == 0
        closed = AsyncStore(tmp_path / "x")
        assert "not open" in repr(closed)
        with pytest.raises(StoreClosed, match="opened"):
            await closed.put(Message("orders", b""))
        await closed.close()

    run(work())
    with LocalStore.open(tmp_path / "s") as local:
        assert len(local.get("orders")) == 1
