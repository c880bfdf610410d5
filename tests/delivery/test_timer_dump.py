"""Timer files as rows."""

from __future__ import annotations

from pathlib import Path

from delivery.timer.timer_world import NOW_MS, TimerWorld
from small_store import ROOT
from tiermq.delivery.timer_dump import dump_timer_file, is_timer_file


def on_real_disk(world: TimerWorld, tmp_path: Path) -> Path:
    for name in ("timerwheel", "timerlog/00000000000000000000", "config/timercheck"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(world.access.read_bytes(f"{ROOT}/{name}"))
    return tmp_path


def stored(tmp_path: Path) -> Path:
    world = TimerWorld()
    world.send(b"a", 5_000)
    world.send(b"b", 500_000)
    world.timers.cancel("T", "K-a", NOW_MS + 5_000)
    world.store.dispatch_now()
    world.turn()
    world.stop()
    return on_real_disk(world, tmp_path)


def test_timer_files_are_known_from_their_paths() -> None:
    assert is_timer_file(Path("/s/timerwheel"))
    assert is_timer_file(Path("/s/config/timercheck"))
    assert is_timer_file(Path("/s/timerlog/00000000000000000000"))
    assert not is_timer_file(Path("/s/commitlog/00000000000000000000"))
    assert not is_timer_file(Path("/s/config/timermetrics"))


def test_units_say_whether_they_roll_and_cancel(tmp_path: Path) -> None:
    path = stored(tmp_path) / "timerlog" / "00000000000000000000"
    rows = list(dump_timer_file(path, "log"))
    assert [(row["kind"], row["position"], row["rolls"], row["cancels"]) for row in rows] == [
        ("timer_unit", 0, False, False),
        ("timer_unit", 52, True, False),
        ("timer_unit", 104, False, True),
    ]
    assert rows[0]["slot_ms"] == NOW_MS + 4_000
    assert rows[2]["previous"] == 0


def test_slots_and_the_checkpoint_are_shown(tmp_path: Path) -> None:
    root = stored(tmp_path)
    slots = list(dump_timer_file(root / "timerwheel", "wheel"))
    by_time = {row["time"]: (row["first"], row["last"], row["timers"]) for row in slots}
    assert by_time == {NOW_MS // 1_000 + 4: (0, 104, 0), NOW_MS // 1_000 + 100: (52, 52, 1)}
    [checkpoint] = dump_timer_file(root / "config" / "timercheck", "check")
    assert (checkpoint["queue_offset"], checkpoint["log_end"], checkpoint["precision_ms"]) == (3, 156, 1_000)


def test_damage_is_a_row(tmp_path: Path) -> None:
    root = stored(tmp_path)
    log = root / "timerlog" / "00000000000000000000"
    data = bytearray(log.read_bytes())
    data[60] = 77
    log.write_bytes(data)
    assert list(dump_timer_file(log, "log"))[-1]["error"].startswith("neither a timer unit")
    (root / "timerwheel").write_bytes(bytes(33))
    assert "behind the last slot" in list(dump_timer_file(root / "timerwheel", "wheel"))[-1]["error"]
    (root / "config" / "timercheck").write_bytes(bytes(9))
    assert "at least 32 bytes" in next(iter(dump_timer_file(root / "config" / "timercheck", "c")))["error"]
