"""The steps of the demo, with a real broker and a real tier, without Spark; with Spark it is in tests/spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiermq.cli.demo import run as demo_run
from tiermq.cli.demo.account import Timeline, bytes_on_disk
from tiermq.cli.demo.broker import Place
from tiermq.cli.demo.orders import DemoFailed, Tally

MESSAGES = 4_000
STEPS = ["put", "recover", "copy", "evict", "read", "rest", "restore"]


def demo_in(directory: Path, said: list[str]) -> tuple[demo_run.Demo, Timeline]:
    place = Place(directory / "store", (directory / "tier").as_uri(), directory / "table")
    timeline = Timeline(lambda: bytes_on_disk(place.store), lambda: bytes_on_disk(directory / "tier"))
    return demo_run.Demo(place, MESSAGES, "nobody asked for it", "here", said.append), timeline


@pytest.mark.crash
def test_every_step_is_taken_reported_and_compared(tmp_path: Path) -> None:
    said: list[str] = []
    demo, timeline = demo_in(tmp_path, said)
    with timeline:
        account = demo.run(timeline)
    assert [step.name for step in account.steps] == STEPS
    assert [line.split()[0] for line in said if line[:2].strip()] == [str(each + 1) for each in range(len(STEPS))]
    assert account.recovered >= account.acknowledged >= MESSAGES // 2
    assert account.messages > MESSAGES
    assert [check.agrees for check in account.checks] == [True] * 3
    assert {check.count for check in account.checks[1:]} == {account.messages}
    assert {check.checksum for check in account.checks[1:]} == {account.checksum}
    assert account.fact("copy", "copied") + account.fact("rest", "copied") == account.messages
    assert account.fact("copy", "held_back") == 1
    assert account.log_files_evicted >= 3
    assert account.local_bytes_after < account.local_bytes_before
    assert account.tier_bytes >= account.messages * 500
    for words in ("SIGKILL", "No Spark: nobody asked for it", "from the tier alone"):
        assert words in " ".join(said)


def test_a_file_that_goes_before_its_copy_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo, timeline = demo_in(tmp_path, [])
    monkeypatch.setattr(demo, "_wire", lambda _work: (2 << 20, 5 << 20))
    with pytest.raises(DemoFailed, match="2 MiB of the local log were deleted that the tier has no copy of"):
        demo._copy(timeline)


@pytest.mark.crash
def test_a_broker_that_dies_by_itself_ends_the_demo_and_nothing_is_left_running(tmp_path: Path) -> None:
    demo, timeline = demo_in(tmp_path, [])

    def kill(timeline: Timeline) -> None:
        demo._broker.kill()

    demo._copy = kill  # type: ignore[method-assign]
    with pytest.raises(DemoFailed), timeline:
        demo.run(timeline)
    assert demo._broker.pid == 0


def test_a_count_that_differs_is_a_failure_that_says_both(tmp_path: Path) -> None:
    demo, _ = demo_in(tmp_path, [])
    with pytest.raises(DemoFailed, match="by hand: expected 2 messages .* found 1 messages"):
        demo._require("by hand", Tally(1, 5), Tally(2, 9))
    assert [check.agrees for check in demo.account.checks] == [False]


@pytest.mark.crash
def test_a_loss_in_the_tier_stops_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo, timeline = demo_in(tmp_path, [])
    restore = demo._restore

    def damaged(running: Timeline) -> None:
        segment = max((tmp_path / "tier").rglob("COMMIT_LOG/*"), key=lambda path: path.stat().st_size)
        with segment.open("r+b") as file:
            file.seek(segment.stat().st_size // 2)
            file.write(b"\0" * 64)
        restore(running)

    monkeypatch.setattr(demo, "_restore", damaged)
    with pytest.raises(Exception, match=r".") as raised, timeline:
        demo.run(timeline)
    assert type(raised.value).__module__.startswith("tiermq.")
