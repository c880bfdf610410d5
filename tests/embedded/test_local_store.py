"""The embedded store as Python programs use it: `tiermq.LocalStore`."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tiermq
from present import present
from simulation.manual_clock import ManualClock
from tiermq import AsyncStore, LocalStore, Message, NotUploaded, PutStatus, TieredStore
from tiermq.errors import BadConfig, DiskFull, IllegalMessage, NotDurable, PutRefused, StoreClosed
from tiermq.store.local_store import LocalStore as Engine


@pytest.fixture
def still(tmp_path: Path) -> Any:
    """A store without threads: nothing is dispatched but by a read."""
    with LocalStore.open(tmp_path / "s", background=False) as store:
        yield store


def filled(store: LocalStore, count: int, topic: str = "orders", queues: int = 2) -> None:
    store.put_many([Message(topic, b"%d" % n, queue_id=n % queues, keys=[f"k{n}"]) for n in range(count)])


# Reading one's writes.


def test_what_was_put_is_read_at_once(still: LocalStore) -> None:
    result = still.put(Message("orders", b"coffee", keys=["order-1"]))
    assert [message.body for message in still.get("orders", 0, result.queue_offset)] == [b"coffee"]
    still.put(Message("orders", b"tea", keys=["order-2"]))
    assert [message.body for message in still.query("orders", "order-2")] == [b"tea"]
    still.put(Message("orders", b"milk"))
    assert still.offset_at("orders", 0, 0, "upper") == 0
    assert (still.max_offset("orders"), still.topics()) == (3, {"orders": [0]})
    still.put(Message("other", b"x"))
    assert [message.body for message in still.read("other")] == [b"x"]


def test_a_read_that_does_not_wait_gives_what_is_dispatched(still: LocalStore) -> None:
    still.put(Message("orders", b"coffee", keys=["order-1"]))
    assert len(still.get("orders", fresh=False)) == 0
    assert len(still.query("orders", "order-1", fresh=False)) == 0
    assert len(still.get("orders")) == 1
    still.put(Message("orders", b"tea"))
    assert len(still.get("orders", fresh=False)) == 1


def test_a_full_page_before_the_dispatched_end_dispatches_nothing(still: LocalStore) -> None:
    filled(still, 4, queues=1)
    assert len(still.get("orders")) == 4
    filled(still, 1, queues=1)
    assert len(still.get("orders", 0, 0, max_messages=2)) == 2
    assert len(still.get("orders", fresh=False)) == 4


def test_what_is_dispatched_while_a_page_is_read_is_in_the_page(
    still: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    still.put(Message("orders", b"coffee"))
    read = still._engine.get

    def read_and_dispatch(*arguments: Any, **options: Any) -> Any:
        page = read(*arguments, **options)
        still._local.dispatch_now()
        return page

    monkeypatch.setattr(still._engine, "get", read_and_dispatch)
    assert len(still.get("orders")) == 1


def test_each_thread_reads_its_writes_while_others_put(tmp_path: Path) -> None:
    missed: list[str] = []

    def work(store: LocalStore, queue: int) -> None:
        for number in range(300):
            key = f"{queue}-{number}"
            result = store.put(Message("orders", key.encode(), queue_id=queue, keys=[key]))
            page = store.get("orders", queue, result.queue_offset, max_messages=1)
            if [message.body for message in page] != [key.encode()]:
                missed.append(f"get {key}")
            if number % 50 == 0 and [message.body for message in store.query("orders", key)] != [key.encode()]:
                missed.append(f"query {key}")

    with LocalStore.open(tmp_path) as store:
        threads = [threading.Thread(target=work, args=(store, queue)) for queue in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert missed == []


def test_a_message_that_did_not_wait_for_the_disk_is_read_under_sync_flush(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path, flush_disk_type="SYNC_FLUSH") as store:
        store.put(Message("orders", b"coffee", properties={"WAIT": "false"}))
        assert [message.body for message in store.get("orders")] == [b"coffee"]


# Refusals.


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message("two words", b""), "illegal characters"),
        (Message("x" * 200, b""), "more than 127"),
        (Message("orders", bytes(5 << 20)), "at most 4194304 bytes, found 5242880"),
        (Message("orders", b"", properties={"a": "b" * 40_000}), "at most 32767 bytes"),
    ],
    ids=["characters", "length", "body", "properties"],
)
def test_a_message_that_cannot_be_stored_raises_with_the_reason(
    still: LocalStore, message: Message, words: str
) -> None:
    with pytest.raises(IllegalMessage, match=words):
        still.put(message)
    with pytest.raises(ValueError, match=words):
        still.put_many([message])
    assert still.try_put(message).status is not PutStatus.PUT_OK
    assert not still.try_put_many([message]).all_ok
    assert still.topics() == {}


def test_a_record_that_fits_no_log_file_raises(tmp_path: Path) -> None:
    with (
        LocalStore.open(tmp_path, mapped_file_size_commit_log=4096) as store,
        pytest.raises(IllegalMessage, match="log file of 4096 bytes"),
    ):
        store.put(Message("orders", bytes(5000)))


def test_some_refused_messages_of_many_leave_the_others_stored(still: LocalStore) -> None:
    with pytest.raises(PutRefused, match="1 of 3 messages were refused; message 1: a b-0") as caught:
        still.put_many([Message("orders", b"1"), Message("a b", b"2"), Message("orders", b"3")])
    assert [result.ok for result in caught.value.results] == [True, False, True]
    assert isinstance(caught.value.__cause__, IllegalMessage)
    assert [message.body for message in still.get("orders")] == [b"1", b"3"]


def test_a_refusal_can_be_sent_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(PutRefused("why", None)))
    assert (type(error), str(error)) == (PutRefused, "why")


def test_a_closed_store_raises(tmp_path: Path) -> None:
    store = LocalStore.open(tmp_path)
    store.close()
    store.close()
    for call in (
        lambda: store.put(Message("orders", b"")),
        lambda: store.put_many([Message("orders", b"")]),
        lambda: store.get("orders"),
        lambda: store.query("orders", "k"),
        lambda: store.read("orders"),
        lambda: store.topics(),
        lambda: store.flush(),
        lambda: store.delete_topics("orders"),
        lambda: store.consumer("orders", "audit"),
    ):
        with pytest.raises(StoreClosed, match="closed"):
            call()
    assert store.try_put(Message("orders", b"")).status is PutStatus.SERVICE_NOT_AVAILABLE


def test_a_full_disk_raises_and_what_was_put_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalStore.open(tmp_path) as store:
        store.put(Message("orders", b"before"))

        def full(*_arguments: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(DiskFull, match="nothing was stored"):
            store.put_many([Message("orders", bytes(1 << 20)) for _ in range(4)])
        monkeypatch.undo()
        assert store.get("orders").messages[0].body == b"before"


def test_a_disk_that_does_not_confirm_in_time_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalStore.open(tmp_path, flush_disk_type="SYNC_FLUSH") as store:
        monkeypatch.setattr(store._local._parts.group_commit, "wait", lambda _end: PutStatus.FLUSH_DISK_TIMEOUT)
        with pytest.raises(NotDurable, match="did not confirm it within 5000 ms"):
            store.put(Message("orders", b""))
        with pytest.raises(NotDurable):
            store.put_many([Message("orders", b""), Message("orders", b"")])


def test_a_fenced_store_says_who_has_the_broker(still: LocalStore) -> None:
    still._local.fence("host-b has it")
    with pytest.raises(PutRefused, match="host-b has it"):
        still.put(Message("orders", b""))


def test_a_key_with_a_blank_is_refused_and_never_split() -> None:
    for keys in ("order 42", ["order 42"], ["a", ""], [" "]):
        with pytest.raises(IllegalMessage, match="without blanks"):
            Message("orders", b"", keys=keys)
    assert Message("orders", b"", keys="42").properties["KEYS"] == "42"
    assert Message("orders", b"", keys=["4", "2"]).properties["KEYS"] == "4 2"
    assert "KEYS" not in Message("orders", b"", keys="").properties
    with pytest.raises(IllegalMessage, match=r"expected KEYS without blanks.*keys=\[…\]"):
        Message("orders", b"", properties={"KEYS": "order 42"})
    assert Message("orders", b"", properties={"KEYS": "42"}).properties == {"KEYS": "42"}
    again = Message("orders", b"", keys=["4", "2"], properties={"KEYS": "a b", "c": "d"})
    assert again.properties == {"KEYS": "4 2", "c": "d"}


# Pages and streams.


def test_a_page_is_a_sequence_with_a_status(still: LocalStore) -> None:
    filled(still, 3, queues=1)
    page = still.get("orders")
    assert (len(page), page[1].body, [message.body for message in page]) == (3, b"1", [b"0", b"1", b"2"])
    assert repr(page) == "GetPage(status=FOUND, count=3, next_offset=3)"
    empty = still.get("orders", 0, 3)
    assert (len(empty), list(empty), bool(empty), empty.next_offset) == (0, [], True, 3)
    assert len(still.query("orders", "k1")) == 1
    assert bool(still.query("orders", "nothing"))
    assert "orders" in repr(page[0])
    assert "tags" in repr(still.query("orders", "k1")[0])


def test_a_page_has_as_many_messages_as_are_asked_for(still: LocalStore) -> None:
    filled(still, 300, queues=1)
    assert len(still.get("orders", 0, 0, max_messages=250)) == 250


def test_tags_choose_the_messages_of_a_page(still: LocalStore) -> None:
    for tags in ("paid", "sent", "open"):
        still.put(Message("orders", tags.encode(), tags=tags))
    assert [message.tags for message in still.get("orders", tags="paid || open")] == ["paid", "open"]
    assert [message.tags for message in still.read("orders", tags="sent")] == ["sent"]


def test_a_topic_is_read_in_the_order_of_store_times(tmp_path: Path, manual_clock: ManualClock) -> None:
    with LocalStore.open(tmp_path, clock=manual_clock, background=False) as store:
        began_ms = manual_clock.now_ms()
        for number in range(10):
            store.put(Message("orders", b"%d" % number, queue_id=number * 7 % 3))
            manual_clock.advance_ms(60_000)
        assert [message.body for message in store.read("orders")] == [b"%d" % number for number in range(10)]
        assert [message.body for message in store.read("orders", since="3m")] == [b"7", b"8", b"9"]
        assert [message.body for message in store.read("orders", since=timedelta(minutes=2))] == [b"8", b"9"]
        since = datetime.fromtimestamp(began_ms / 1000 + 120, UTC)
        until = began_ms + 4 * 60_000
        found = [message.body for message in store.read("orders", since=since, until=until)]
        assert found == [b"2", b"3"]
        assert [m.body for m in store.read("orders", since=since.isoformat(), until=until)] == found
        assert [message.body for message in store.read("orders", queue_id=1, offset=1)] == [b"4", b"7"]
        assert store.offset_at("orders", 0, "1h") == 0
        for wrong in ("an hour ago", -1, 1.5):
            with pytest.raises(BadConfig, match="moment"):
                store.read("orders", since=wrong)  # type: ignore[arg-type]
        with pytest.raises(BadConfig, match="queue_id"):
            store.read("orders", offset=1)


def test_a_loop_that_puts_to_its_own_topic_ends(still: LocalStore) -> None:
    filled(still, 5)
    for message in still.read("orders"):
        still.put(Message("orders", message.body, queue_id=3))
    assert len(list(still.read("orders"))) == 10


def test_a_read_that_waits_gets_what_another_thread_puts(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path) as store:
        stream = store.read("orders", wait_s=60)
        found: list[bytes] = []

        def follow() -> None:
            for message in stream:
                found.append(message.body)
                if message.body == b"last":
                    break

        thread = threading.Thread(target=follow)
        thread.start()
        for number in range(50):
            store.put(Message("orders", b"%d" % number, queue_id=number % 3))
        store.put(Message("orders", b"last", queue_id=5))
        thread.join()
        assert sorted(found) == sorted([*(b"%d" % number for number in range(50)), b"last"])
        page = store.get("orders", 5, 1, wait_s=0.01)
        assert len(page) == 0
        timer = threading.Thread(target=store.put, args=(Message("orders", b"more", queue_id=5),))
        timer.start()
        assert [message.body for message in store.get("orders", 5, 1, wait_s=60)] == [b"more"]
        timer.join()


def test_a_waiting_stream_ends_when_it_or_its_store_is_closed(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path) as store:
        ended: list[list[Any]] = []
        streams = [store.read("orders", wait_s=600), store.read("orders", wait_s=float("inf"))]
        threads = [threading.Thread(target=lambda each=each: ended.append(list(each))) for each in streams]
        for thread in threads:
            thread.start()
        streams[0].close()
        threads[0].join()
        store.close()
        threads[1].join()
        assert ended == [[], []]


# Life.


def test_paths_may_be_relative_and_a_store_shows_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with LocalStore.open(Path("shop")) as store:
        store.put(Message("orders", b""))
        assert repr(store) == f"LocalStore({str(tmp_path / 'shop')!r})"
        assert (store.path, store.is_open) == (tmp_path / "shop", True)
        monkeypatch.chdir("/")
        store.put(Message("orders", b""))
    assert repr(store) == f"LocalStore({str(tmp_path / 'shop')!r}, closed)"
    assert not store.is_open
    assert (tmp_path / "shop" / "commitlog").is_dir()


def test_a_store_shows_only_what_programs_need(still: LocalStore) -> None:
    inner = {"append", "appender", "dispatch_now", "log_bytes", "fence", "units_between", "tier", "local"}
    assert inner & set(dir(still)) == set()
    assert {"put", "get", "read", "consumer"} <= set(dir(still))


def disk_bytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def test_a_store_of_a_few_messages_takes_a_few_megabytes(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path) as store:
        filled(store, 20)
        assert len(store.query("orders", "k3")) == 1
        assert disk_bytes(tmp_path) < 4 << 20
    assert disk_bytes(tmp_path) < 4 << 20
    sizes = {path.stat().st_size for path in (tmp_path / "commitlog").iterdir()}
    assert sizes == {1 << 30}, "files keep RocketMQ's sizes"


def test_an_index_that_grew_finds_every_key_after_a_restart(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path) as store:
        filled(store, 100)
        store.query("orders", "k0")
    with LocalStore.open(tmp_path) as store:
        store.put_many([Message("orders", b"", keys=[f"k{number}"]) for number in range(100, 400)])
        assert [len(store.query("orders", f"k{number}")) for number in range(400)] == [1] * 400
    with Engine.open(tmp_path) as engine:  # As a broker opens it.
        assert [len(engine.query("orders", f"k{number}")) for number in range(400)] == [1] * 400
        engine.put(Message("orders", b"", keys=["of the broker".replace(" ", "-")]))


def test_a_deleted_topic_is_gone_for_readers_and_groups(still: LocalStore) -> None:
    filled(still, 4)
    with still.consumer("orders", "audit") as consumer:
        assert len(list(consumer)) == 4
    assert still.delete_topics("orders") == 1
    assert still.topics() == {}
    filled(still, 2)
    with still.consumer("orders", "audit") as consumer:
        assert len(list(consumer)) == 2


def test_names_of_the_package_are_found_and_listed() -> None:
    for name in tiermq.__all__:
        assert getattr(tiermq, name) is not None
        assert name in dir(tiermq)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = tiermq.Nothing


LEFT_OPEN = """
import asyncio, sys
from tiermq import AsyncStore, LocalStore, Message, TieredStore
kind, path = sys.argv[1:]
def fill(store):
    store.put_many([Message("orders", b"%d" % n) for n in range(20)])
    consumer = store.consumer("orders", group="audit")
    consumer.take(5)
    consumer.take(5)
if kind == "local":
    fill(LocalStore.open(path))
elif kind == "tier":
    fill(TieredStore.open(path, tier=path + ".tier"))
elif kind == "error":
    kept = LocalStore.open(path)
    fill(kept)
    other = LocalStore.open(path + ".other")
    other._engine.close = lambda: 1 / 0
else:
    async def work():
        store = AsyncStore(path)
        await store.open()
        fill(store.store)
    asyncio.run(work())
print("end")
"""


@pytest.mark.parametrize("kind", ["local", "tier", "async", "error"])
def test_stores_that_a_program_left_open_are_closed_when_it_ends(tmp_path: Path, kind: str) -> None:
    store = tmp_path / "store"
    command = [sys.executable, "-W", "error", "-c", LEFT_OPEN, kind, str(store)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "end\n")
    if kind == "error":
        assert "ZeroDivisionError" in done.stderr, "reported, and the other store is closed"
    else:
        assert done.stderr == ""
    assert not (store / "abort").exists()
    if kind == "tier":
        with TieredStore.open(store, tier=f"{store}.tier", background=False) as tiered:
            assert tiered.close() == NotUploaded()
    with Engine.open(store, with_tier=True) as engine:
        assert present(engine.recovered).mode == "marker"
        assert engine.get("orders", 0, 0).count == 20
    if kind != "tier":
        with LocalStore.open(store) as again, again.consumer("orders", group="audit") as consumer:
            assert consumer.positions == {0: 5}, "those that were given last may not be done"


@pytest.mark.parametrize("wait_s", [None, -1, float("nan"), "1"])
def test_a_wait_that_is_no_time_is_refused_in_words(still: LocalStore, tmp_path: Path, wait_s: Any) -> None:
    filled(still, 2)
    consumer, stream = still.consumer("orders", group="audit"), still.read("orders")

    async def asked() -> None:
        async with AsyncStore(tmp_path / "a") as store:
            reader, member = store.read("orders"), store.consumer("orders", group="audit")
            for call in (
                lambda: store.get("orders", wait_s=wait_s),
                lambda: reader.wait_next(wait_s),
                lambda: member.take(1, wait_s),
                lambda: member.receive(wait_s),
            ):
                with pytest.raises(BadConfig, match="wait_s: expected seconds, 0 or more"):
                    await call()
            for make in (store.read, partial(store.consumer, group="audit")):
                with pytest.raises(BadConfig, match="wait_s: expected seconds, 0 or more"):
                    make("orders", wait_s=wait_s)

    for call in (
        lambda: still.get("orders", wait_s=wait_s),
        lambda: still.read("orders", wait_s=wait_s),
        lambda: still.consumer("orders", group="other", wait_s=wait_s),
        lambda: consumer.receive(wait_s),
        lambda: stream.wait_next(wait_s),
    ):
        with pytest.raises(BadConfig, match="wait_s: expected seconds, 0 or more"):
            call()
    asyncio.run(asked())
    still.consumer("orders", group="other").close()


def test_one_message_where_several_are_expected_is_refused_in_words(still: LocalStore, tmp_path: Path) -> None:
    message: Any = Message("orders", b"0")
    for put in (still.put_many, still.try_put_many):
        with pytest.raises(TypeError, match="expected Messages, such as a list of them, found Message"):
            put(message)
    with LocalStore.open(tmp_path / "other") as store, pytest.raises(TypeError, match="found Message"):
        store.try_put_many(message)


FORKED = """
import os, sys, tiermq
from tiermq import LocalStore, Message
from tiermq.errors import StoreClosed
kind, path = sys.argv[1:]
if kind == "tier":
    opened = tiermq.TieredStore.open(path, tier=path + ".tier")
else:
    opened = LocalStore.open(path, flush_disk_type=kind)
with opened as store:
    store.put(Message("orders", b"before", keys=["k"]))
    consumer = store.consumer("orders", group="audit")
    next(consumer)
    child = os.fork()
    if child == 0:
        for call in (
            lambda: store.put(Message("orders", b"never")),
            lambda: store.put_many([Message("orders", b"never")]),
            lambda: store.get("orders"),
            lambda: store.query("orders", "k"),
            lambda: list(store.read("orders")),
            lambda: store.flush(),
            lambda: consumer.commit(),
        ):
            try:
                call()
            except StoreClosed as error:
                assert "forked" in str(error) or "consumer" in str(error), error
            else:
                raise AssertionError("it was not refused")
        assert not store.try_put(Message("orders", b"never")).ok
        assert "closed" in repr(store)
        sys.exit()  # Leaves the block, and closes.
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert os.path.exists(os.path.join(path, "abort"))
    for number in range(1_000):
        store.put(Message("orders", b"%d" % number))
    consumer.close()
"""


@pytest.mark.parametrize("kind", ["ASYNC_FLUSH", "SYNC_FLUSH", "tier"])
def test_a_store_belongs_to_the_process_that_opened_it_and_not_to_its_children(tmp_path: Path, kind: str) -> None:
    """A child has the same maps: what it wrote would be written over by its parent, and its end would look like one."""
    command = [sys.executable, "-W", "error", "-c", FORKED, kind, str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with LocalStore.open(tmp_path / "s") as store:
        assert store._local.recovered is not None
        assert [message.body for message in store.read("orders")] == [b"before", *(b"%d" % n for n in range(1_000))]


# What is no store, no place, no queue.


def test_a_class_that_is_called_instead_of_opened_refuses_in_words_and_leaves_nothing_to_close(tmp_path: Path) -> None:
    program = """if True:
        import tiermq

        for kind in (tiermq.LocalStore, tiermq.TieredStore):
            try:
                kind("shop")
            except TypeError as error:
                print(error)
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout.splitlines() == [
        "expected the engine of a store, found 'shop': use LocalStore.open(path)",
        "expected the engine of a tiered store, found 'shop': use TieredStore.open(path, tier=…)",
    ]
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("wrong", [None, "", b"shop", 3, "s3://bucket/shop", "file:///shop", "memory://shop"])
def test_what_is_no_directory_is_no_place_of_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "TieredStore" if "://" in str(wrong) else "found an empty text" if wrong == "" else f"found {wrong!r}"
    with pytest.raises(BadConfig, match=f"a store is in a directory.*{words}"):
        LocalStore.open(wrong)
    with pytest.raises(BadConfig, match=f"a store is in a directory.*{words}"):
        TieredStore.open(wrong, tier="tier")
    assert list(tmp_path.iterdir()) == []


def test_the_home_of_the_user_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with LocalStore.open("~/shop") as store:
        assert store.path == tmp_path / "shop"
    with pytest.raises(BadConfig, match="home of a user of this machine"):
        LocalStore.open("~no-such-user-here/shop")


def test_a_date_is_its_midnight_in_utc(tmp_path: Path) -> None:
    clock = ManualClock(1_790_000_000_000)
    today = datetime.fromtimestamp(clock.now_ms() / 1000, UTC).date()
    with LocalStore.open(tmp_path, clock=clock) as store:
        store.put(Message("orders", b"tea"))
        found = [len(list(store.read("orders", since=today + timedelta(days)))) for days in (-1, 0, 1)]
        assert found == [1, 1, 0]
        assert len(list(store.read("orders", since=today, until=today + timedelta(1)))) == 1


def test_reads_refuse_what_is_no_topic_no_queue_and_no_number(still: LocalStore) -> None:
    filled(still, 4)
    wrong: Any
    reads: list[Any] = [still.get, still.min_offset, still.max_offset, lambda name: still.query(name, "k1")]
    for read in reads:
        with pytest.raises(IllegalMessage, match="found b'orders'"):
            read(b"orders")
    for wrong in ("0", 0.5, None, -1):
        calls: list[Any] = [
            lambda: still.get("orders", wrong),  # noqa: B023 - called at once
            lambda: still.min_offset("orders", wrong),  # noqa: B023
            lambda: still.max_offset("orders", wrong),  # noqa: B023
            lambda: still.offset_at("orders", wrong, 0),  # noqa: B023
        ]
        if wrong is not None:
            calls.append(lambda: still.read("orders", queue_id=wrong))  # noqa: B023
        for call in calls:
            with pytest.raises(BadConfig, match="queue_id: expected a whole number of 0 or more, found"):
                call()
    wrong = "0"
    with pytest.raises(BadConfig, match="offset: expected a whole number"):
        still.get("orders", 0, wrong)
    for wrong in (0, -1, "3"):
        with pytest.raises(BadConfig, match="max_messages: expected a whole number of 1 or more"):
            still.get("orders", 0, 0, wrong)
        with pytest.raises(BadConfig, match="max_messages: expected a whole number of 1 or more"):
            still.query("orders", "k1", max_messages=wrong)
    for wrong in (-2, "0"):
        with pytest.raises(BadConfig, match="offset: expected a whole number of 0 or more"):
            still.read("orders", queue_id=0, offset=wrong)
    with pytest.raises(BadConfig, match="expected until at or after since, found since='1h' and until='2h'"):
        still.read("orders", since="1h", until="2h")
    wrong = b"k1"
    with pytest.raises(BadConfig, match="key: expected a text, found b'k1'"):
        still.query("orders", wrong)


def test_numbers_of_numpy_name_queues_and_offsets(still: LocalStore) -> None:
    numpy = pytest.importorskip("numpy")
    filled(still, 4)
    assert len(still.get("orders", numpy.int64(1), numpy.int64(1), numpy.int64(5))) == 1
