"""The Java reference loops do the work that they are timed for. Not in the default lane: starts virtual machines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks import harness, java_peer, upload_side, workload
from benchmarks.java_peer import JavaPeer, JdkMissing
from benchmarks.peer import PeerFailed
from tiermq.kernel import rearrange_index

SIZE = 4 << 20
COUNT = 2_000


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture(scope="module")
def java() -> harness.JavaBench:
    try:
        java_peer.find_jdk()
    except JdkMissing as missing:
        pytest.skip(str(missing))
    return harness.JavaBench(wanted=True)


def started(java: harness.JavaBench, stack: ExitStack, work: str, **parameters: object) -> JavaPeer:
    peer = java.start(stack, work, **parameters)
    assert peer is not None
    return peer


def test_a_machine_without_a_compiler_is_reported_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runtime = tmp_path / "bin" / "java"
    runtime.parent.mkdir()
    runtime.write_text("")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(JdkMissing, match="JDK >= 17 with javac .*no javac beside it.*--no-java"):
        java_peer.find_jdk()
    with pytest.raises(SystemExit, match="JDK >= 17 with javac"):
        harness.JavaBench(wanted=True)


def test_no_java_starts_nothing(stack: ExitStack) -> None:
    assert harness.JavaBench(wanted=False).start(stack, "PutLoop") is None


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "per_call", "batches"), [("PutLoop", {"pool": 1024}, False), ("BatchPutLoop", {"batch": 1000}, True)]
)
def test_the_put_loops_write_valid_records_in_order(
    java: harness.JavaBench, stack: ExitStack, tmp_path: Path, work: str, per_call: dict[str, int], batches: bool
) -> None:
    done = started(java, stack, work, file=tmp_path / "log", size=SIZE, **per_call).run(count=COUNT)
    assert (done.messages, done.bytes) == (COUNT, COUNT * workload.RECORD_BYTES)
    following: dict[tuple[str, int], int] = {}
    for number, found in enumerate(workload.decode_log((tmp_path / "log").read_bytes(), COUNT)):
        topic, queue_id, queue_offset, physical_offset, _ = found
        assert physical_offset == number * workload.RECORD_BYTES
        assert queue_offset == following.get((topic, queue_id), 0)
        following[topic, queue_id] = queue_offset + 1
    assert len(following) == (2 if batches else 64)


@pytest.mark.bench
@pytest.mark.slow
def test_the_reading_loops_find_every_record(java: harness.JavaBench, stack: ExitStack, tmp_path: Path) -> None:
    count = workload.write_log(tmp_path / "log", SIZE, varied=True)
    for work in ("dispatch", "get"):
        (tmp_path / work).mkdir()
    recover = started(java, stack, "RecoverLoop", log=tmp_path / "log")
    dispatch = started(java, stack, "DispatchLoop", log=tmp_path / "log", dir=tmp_path / "dispatch")
    get = started(java, stack, "GetLoop", log=tmp_path / "log", dir=tmp_path / "get")
    assert recover.run().messages == count
    assert dispatch.run(fresh=0).messages == count
    assert dispatch.run(fresh=1).messages == count  # A round starts from emptied files.
    assert get.run(pulls=100, batch=32, seed=1).messages == 3_200


@pytest.mark.bench
@pytest.mark.slow
def test_the_dispatch_loop_writes_the_units_of_every_queue(
    java: harness.JavaBench, stack: ExitStack, tmp_path: Path
) -> None:
    rows = list(workload.rows_of_log(SIZE, varied=True))
    workload.write_log(tmp_path / "log", SIZE, varied=True)
    started(java, stack, "DispatchLoop", log=tmp_path / "log", dir=tmp_path).run(fresh=1)
    expected: dict[tuple[str, int], bytearray] = {}
    offset = 0
    for row in rows:
        unit = offset.to_bytes(8) + row.record_bytes.to_bytes(4) + java_hash("TagABCD").to_bytes(8, signed=True)
        expected.setdefault(workload.queue_of(row.number), bytearray()).extend(unit)
        offset += row.record_bytes
    for (topic, queue_id), units in expected.items():
        assert (tmp_path / f"{topic}-{queue_id}").read_bytes().startswith(units)


def java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@pytest.mark.bench
@pytest.mark.slow
def test_the_index_loop_puts_every_key(java: harness.JavaBench, stack: ExitStack, tmp_path: Path) -> None:
    peer = started(java, stack, "IndexPutLoop", dir=tmp_path, keys=COUNT)
    assert [peer.run(hashed=hashed, fresh=hashed).messages for hashed in (0, 1)] == [COUNT, COUNT]
    with (tmp_path / "index").open("rb") as file:
        os.lseek(file.fileno(), 36, os.SEEK_SET)
        assert int.from_bytes(os.read(file.fileno(), 4)) == COUNT + 1


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.parametrize("fresh", [0, 1])
def test_the_walk_along_the_chains_gives_the_bytes_of_a_compacted_index(
    java: harness.JavaBench, stack: ExitStack, tmp_path: Path, fresh: int
) -> None:
    slots, capacity = 500, COUNT
    path = upload_side.fill_index_file(tmp_path, slots, capacity)
    out = tmp_path / "out"
    shape = {"slots": slots, "capacity": capacity, "items": capacity - 1}
    done = started(java, stack, "TierIndexWalk", source=path, out=out, **shape).run(fresh=fresh)
    assert done.messages == capacity - 1
    assert out.read_bytes() == rearrange_index(path.read_bytes(), slots, capacity)


@pytest.mark.bench
@pytest.mark.slow
def test_a_loop_that_fails_reports_why(java: harness.JavaBench, stack: ExitStack) -> None:
    with pytest.raises(PeerFailed, match="the request lacks file="):
        started(java, stack, "PutLoop")
