"""Recovery with a second thread leaves the same bytes as recovery without one, on the real disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from small_store import LOG_BYTES, SIZES, body
from tiermq import Message
from tiermq.commitlog import recovery
from tiermq.errors import DiskFull
from tiermq.kernel import KERNEL
from tiermq.store.dispatch import Dispatch
from tiermq.store.local_store import LocalStore
from tiermq.store.recovery import Recovered

COUNT = 900
PAGE = 512


def crashed(directory: Path) -> list[int]:
    """A store of a dozen log files and queues that its process left behind; where each record begins."""
    with LocalStore.open(directory, background=False, **SIZES) as store:
        offsets = [
            store.put(Message(f"T{number % 5}", body(number, 90), number % 2, keys=f"k{number}")).physical_offset
            for number in range(COUNT)
        ]
        store.dispatch_now()
    (directory / "tiermq.clean").unlink()
    (directory / "checkpoint").unlink()
    (directory / "abort").write_bytes(b"1")
    return offsets


def images(directory: Path) -> dict[str, bytes]:
    """Every byte of log, queues and index; the index' names are times."""
    found = {}
    for part in ("commitlog", "consumequeue", "index"):
        paths = sorted(path for path in (directory / part).rglob("*") if path.is_file())
        for number, path in enumerate(paths):
            name = f"{part}/{number}" if part == "index" else str(path.relative_to(directory))
            found[name] = path.read_bytes()
    return found


def flip(path: Path, at: int, data: bytes | None = None) -> None:
    content = bytearray(path.read_bytes())
    if data is None:
        content[at] ^= 0x5A
    else:
        content[at : at + len(data)] = data
    path.write_bytes(content)


def log_file(directory: Path, offset: int) -> Path:
    return directory / "commitlog" / f"{offset // LOG_BYTES * LOG_BYTES:020d}"


def nothing(_directory: Path, _offsets: list[int]) -> None:
    """The log is whole."""


def damaged_body(directory: Path, offsets: list[int]) -> None:
    flip(log_file(directory, offsets[-7]), offsets[-7] % LOG_BYTES + 100)


def lost_page(directory: Path, offsets: list[int]) -> None:
    at = (offsets[-9] % LOG_BYTES + PAGE) // PAGE * PAGE
    flip(log_file(directory, offsets[-9]), at, bytes(PAGE))


def torn_unit(directory: Path, _offsets: list[int]) -> None:
    flip(sorted((directory / "consumequeue" / "T1" / "1").iterdir())[0], 3 * 20, bytes(9))


def lost_queue(directory: Path, _offsets: list[int]) -> None:
    shutil.rmtree(directory / "consumequeue" / "T2")


def recovered(directory: Path, threads: bool) -> tuple[Recovered | None, dict[str, bytes]]:
    with LocalStore.open(directory, background=threads, **SIZES) as store:
        done = store.recovered
    return done, images(directory)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small files are checked ahead as well; where those checks ended."""
    ends: list[int] = []

    class Noted(recovery.CheckAhead):
        def __exit__(self, *failure: object) -> None:
            super().__exit__(*failure)  # type: ignore[arg-type]
            ends.append(self.position)

    monkeypatch.setattr(recovery, "CheckAhead", Noted)
    monkeypatch.setattr(recovery, "CHECK_AHEAD_BYTES_MIN", 0)
    monkeypatch.setattr(recovery, "STEP_BYTES", 4 * PAGE)
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: {0, 1})
    return ends


@pytest.mark.parametrize("damage", [nothing, damaged_body, lost_page, torn_unit, lost_queue])
def test_a_second_thread_changes_nothing_in_what_a_recovery_leaves(
    tmp_path: Path, checks: list[int], damage: Callable[[Path, list[int]], None]
) -> None:
    damage(tmp_path / "one", crashed(tmp_path / "one"))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    alone = recovered(tmp_path / "one", threads=False)
    assert checks == []
    beside = recovered(tmp_path / "two", threads=True)
    assert beside == alone
    assert (len(checks) > 5) == (KERNEL == "compiled")
    assert alone[0] is not None
    assert alone[0].mode == "abnormal"
    lost = alone[0].records_dispatched < COUNT
    assert lost == (damage in (damaged_body, lost_page))


def test_a_process_with_one_processor_checks_and_dispatches_in_turn(
    tmp_path: Path, checks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: {0})
    crashed(tmp_path)
    assert recovered(tmp_path, threads=True)[0] is not None
    assert checks == []


def test_a_disk_that_is_full_for_the_index_is_reported_by_the_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that makes the index' file beforehand keeps its failure to itself: the walk needs the file anyway."""
    crashed(tmp_path)
    reported: list[str] = []

    def full(self: Dispatch, _index: object) -> None:
        reported.append("asked")
        raise DiskFull("no room for the index")

    with monkeypatch.context() as patch:
        patch.setattr(Dispatch, "_refresh_index_tail", full)
        with pytest.raises(DiskFull, match="no room for the index"):
            recovered(tmp_path, threads=True)
    assert len(reported) == 2
    done, _ = recovered(tmp_path, threads=True)
    assert done is not None
    assert done.records_dispatched == COUNT
