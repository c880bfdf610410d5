"""A batch is put once, wherever the driver dies."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from small_store import SIZES
from spark.sink.sink_world import QUERY, bodies, make_store, sink_options, staged, stored
from tiermq import Message
from tiermq.errors import StagingLost, StoreError
from tiermq.pipeline.store_directory import open_store
from tiermq.spark.sink import batch_commit
from tiermq.spark.sink.batch_commit import commit_batch, is_done, read_intent
from tiermq.spark.sink.staged_rows import BatchName, message_of
from tiermq.store.local_store import LocalStore


class Died(BaseException):
    """The driver's process ends here."""


@pytest.fixture
def options(tmp_path: Path) -> Any:
    make_store(tmp_path)
    return sink_options(tmp_path, queueCount="2")


def test_rows_are_put_in_the_order_of_partitions_and_rows(tmp_path: Path, options: Any) -> None:
    files = staged(options, QUERY, bodies("a", "b", "c", "d"), [], bodies("e"))
    assert commit_batch(QUERY, reversed(files), options) == 5
    assert [message.body for message in stored(tmp_path)] == [b"a", b"c", b"e", b"b", b"d"]


def test_a_batch_that_was_committed_is_not_put_again(tmp_path: Path, options: Any) -> None:
    assert commit_batch(QUERY, staged(options, QUERY, bodies("a", "b")), options) == 2
    assert commit_batch(QUERY, staged(options, QUERY, bodies("a", "b")), options) == 0
    assert len(stored(tmp_path)) == 2
    later = BatchName("query", 1)
    assert commit_batch(later, staged(options, later, bodies("c")), options) == 1
    assert is_done(QUERY, options)
    other = BatchName("other", 0)
    assert commit_batch(other, staged(options, other, bodies("a")), options) == 1
    assert len(stored(tmp_path)) == 4


def test_nothing_staged_is_left_behind(tmp_path: Path, options: Any) -> None:
    staged(options, QUERY, bodies("an attempt that died"))
    commit_batch(QUERY, staged(options, QUERY, bodies("a")), options)
    left = [path.name for path in (tmp_path / "store.staging").rglob("*") if path.is_file()]
    assert left == ["done.json"]


@pytest.mark.parametrize("at", ["write_intent", "_put", "_write_done", "_clean"])
@pytest.mark.parametrize("done", [False, True])
def test_a_driver_may_die_before_or_after_each_step(
    tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch, at: str, done: bool
) -> None:
    name = "_write" if at == "_write_done" else at
    original = getattr(batch_commit, name)

    def dies(*arguments: Any) -> Any:
        if at == "_write_done" and "batch" not in arguments[1]:
            return original(*arguments)
        if done:
            original(*arguments)
        raise Died

    monkeypatch.setattr(batch_commit, name, dies)
    with pytest.raises(Died):
        commit_batch(QUERY, staged(options, QUERY, bodies("a", "b", "c")), options)
    monkeypatch.setattr(batch_commit, name, original)
    # Another writer writes meanwhile, and the repetition has its rows in another order.
    with LocalStore.open(tmp_path / "store", **SIZES) as store:
        assert store.put(Message("T", b"other")).ok
    commit_batch(QUERY, staged(options, QUERY, bodies("c", "a", "b")), options)
    found = sorted(message.body for message in stored(tmp_path))
    assert found == [b"a", b"b", b"c", b"other"]


@pytest.mark.parametrize("count", range(1, 6))
def test_a_driver_may_die_after_any_message(
    tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    puts: list[dict[str, Any]] = []

    def dies(row: dict[str, Any]) -> Message:
        if len(puts) == count:
            raise Died
        puts.append(row)
        return message_of(row)

    monkeypatch.setattr(batch_commit, "SINK_PUT_AT_ONCE", 1)
    monkeypatch.setattr(batch_commit, "message_of", dies)
    with pytest.raises(Died):
        commit_batch(QUERY, staged(options, QUERY, bodies("a", "b", "c"), bodies("d", "e", "f")), options)
    monkeypatch.setattr(batch_commit, "message_of", message_of)
    put = commit_batch(QUERY, staged(options, QUERY, bodies("f", "e", "d"), bodies("a", "b", "c")), options)
    assert put == 6 - count
    assert sorted(message.body for message in stored(tmp_path)) == [b"a", b"b", b"c", b"d", b"e", b"f"]


@pytest.mark.parametrize("at", ["write_intent", "_put", "_write_done", "_clean"])
def test_a_commit_that_outlives_its_driver_and_its_repetition_put_a_batch_once(
    tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    name = "_write" if at == "_write_done" else at
    original = getattr(batch_commit, name)
    is_there, may_go_on, results = threading.Event(), threading.Event(), []

    def waits(*arguments: Any) -> Any:
        if threading.current_thread() is old and (at != "_write_done" or "batch" in arguments[1]):
            is_there.set()
            may_go_on.wait()
        return original(*arguments)

    def commit(*texts: str) -> None:
        results.append(commit_batch(QUERY, staged(options, QUERY, bodies(*texts)), options))

    monkeypatch.setattr(batch_commit, name, waits)
    old, new = threading.Thread(target=commit, args="abc"), threading.Thread(target=commit, args="cba")
    old.start()
    is_there.wait()
    # The repetition meets the old one at its look for the lock, or after the whole of it.

    def opens(*arguments: Any) -> Any:
        may_go_on.set()
        return open_store(*arguments)

    monkeypatch.setattr(batch_commit, "open_store", opens)
    new.start()
    if at == "_clean":
        new.join()
        may_go_on.set()
    old.join()
    new.join()
    assert sorted(results) == [0, 3]
    assert sorted(message.body for message in stored(tmp_path)) == [b"a", b"b", b"c"]


@pytest.mark.crash
def test_a_process_that_is_killed_in_the_middle_of_the_put_is_made_up_for(tmp_path: Path, options: Any) -> None:
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from spark.sink.sink_world import QUERY, bodies, sink_options, staged\n"
        "from tiermq.spark.sink import batch_commit\n"
        "original, batch_commit.SINK_PUT_AT_ONCE = batch_commit.message_of, 1\n"
        "def dies(row):\n"
        "    if row['body'] == b'c':\n"
        "        os._exit(9)\n"
        "    return original(row)\n"
        "batch_commit.message_of = dies\n"
        "options = sink_options(Path(sys.argv[1]), queueCount='2')\n"
        "batch_commit.commit_batch(QUERY, staged(options, QUERY, bodies('a', 'b', 'c', 'd')), options)\n"
    )
    died = subprocess.run([sys.executable, "-c", program, tmp_path], check=False)
    assert died.returncode == 9
    assert commit_batch(QUERY, staged(options, QUERY, bodies("d", "c", "b", "a")), options) == 2
    assert [message.body for message in stored(tmp_path)] == [b"a", b"c", b"b", b"d"]


def test_a_staged_file_that_is_not_what_was_written_is_reported_before_anything_is_put(
    tmp_path: Path, options: Any
) -> None:
    files = staged(options, QUERY, bodies("a"), bodies("b"))
    data = bytearray(Path(files[1].path).read_bytes())
    data[-20] ^= 1
    Path(files[1].path).write_bytes(data)
    with pytest.raises(StagingLost, match="option staging"):
        commit_batch(QUERY, files, options)
    assert stored(tmp_path) == []
    assert read_intent(QUERY, options) is None


def test_a_message_that_the_store_refuses_is_named(tmp_path: Path, options: Any) -> None:
    huge = [{"body": b"x" * (5 << 20)}]
    with pytest.raises(StoreError, match="expected to store message query/0/0/0 of topic 'T', found"):
        commit_batch(QUERY, staged(options, QUERY, huge), options)
