"""Works whose sides are scripted, and a whole run made of them, for tests of `python3 dev.py bench compare`."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.compare.results import Comparison, Memory, Outcome, Point, Sample, Status
from benchmarks.compare.work import LIMIT, ROCKETMQ, TIERMQ, Goal, Kind, Place, Sides, Work
from benchmarks.harness import Side
from benchmarks.report import Round

MESSAGES = 1000
MIB = 1 << 20


def scripted(side: str, seconds: float, log: list[str] | None = None, messages: int = MESSAGES) -> Side:
    """A side that says it took so long, and notes that it was called."""

    def once() -> Round:
        if log is not None:
            log.append(side[0])
        return Round(messages, messages * 100, seconds, seconds / 2)

    return once


def fake_work(name: str, log: list[str] | None = None, ours: float = 0.5, theirs: float = 1.0, **more: object) -> Work:
    """TierMQ twice as fast as RocketMQ, the limit ten times as fast as TierMQ, by default."""

    def opener(place: Place, stack: ExitStack) -> Sides:
        (place.directory / "file").write_bytes(bytes(4096 * place.scale))
        if log is not None:
            stack.callback(log.append, "!")
        sides = {TIERMQ: (ours, MESSAGES), ROCKETMQ: (theirs, MESSAGES), LIMIT: (ours / 10, MESSAGES)}
        rounds = {
            side: scripted(side, took, log, count * place.scale // place.part) for side, (took, count) in sides.items()
        }
        return Sides(rounds, notes={"settings": "the same", "directory": place.directory})

    return Work(name, **{"group": "fakes", "title": f"fake {name}", "opener": opener, **more})  # type: ignore[arg-type]


def broken_work(name: str) -> Work:
    """It ends the program, as sides that miss something do."""

    def opener(place: Place, stack: ExitStack) -> Sides:
        raise SystemExit(f"no broker in {place.directory}/x: missing")

    return fake_work(name, opener=opener)


def samples(seconds: list[float], at: float = 1_000.0, messages: int = MESSAGES, size: int = 100) -> list[Sample]:
    rounds = [Round(messages, messages * size, each, each / 2) for each in seconds]
    return [Sample(at + 2 * number, done, 50 * MIB, 20 * MIB) for number, done in enumerate(rounds)]


def point(scale: int, ours: list[float], theirs: list[float], limit: list[float] | None = None) -> Point:
    made = Point(scale, Status.MEASURED, started_at=1_000.0, seconds=12.0, load_average=0.25)
    made.samples = {
        TIERMQ: samples(ours, messages=MESSAGES * scale),
        ROCKETMQ: samples(theirs, 1_001.0, messages=MESSAGES * scale),
    }
    if limit:
        made.samples[LIMIT] = samples(limit, 1_001.5)
    made.memory = {
        TIERMQ: Memory(100 * MIB, 30 * MIB, 80 * MIB, 25 * MIB),
        ROCKETMQ: Memory(400 * MIB, 300 * MIB, 390 * MIB, 290 * MIB),
    }
    made.files_bytes = {"directory": 8 * MIB, "disk": 0}
    made.notes = {"settings": {"flush": "async", "files": 1_073_741_824}}
    return made


def outcome(
    name: str, *points: Point, group: str = "store", goal: Goal | None = None, kind: Kind = Kind.RATE
) -> Outcome:
    made = Outcome(name, group, f"what {name} does", kind, goal, "memcpy")
    made.points = {each.scale: each for each in points}
    return made


def whole_run() -> Comparison:
    """A goal met, one missed, one of time, a work without a goal, one that grows, one that failed, one left out."""
    fast = outcome("put_fast", point(1, [0.5, 0.4, 0.5], [1.0, 1.2, 0.9], [0.1] * 3), goal=Goal(1.5))
    fast.growth = {scale: point(scale, [0.5 * scale, 0.6 * scale], [1.0 * scale, 1.2 * scale]) for scale in (1, 4)}
    fast.growth[16] = Point(16, Status.LEFT_OUT, reason="about 30.0 GB of memory needed, 20.0 GB there")
    for each in fast.growth.values():
        each.part = 4
        if each.is_measured:
            each.notes["messages"] = MESSAGES * each.scale
    slow = outcome("put_slow", point(1, [1.0, 1.0, 1.1], [1.0, 1.1, 1.0]), goal=Goal(1.2))
    free = outcome("read_free", point(1, [1.0, 1.0, 1.0], [3.0, 3.0, 3.0]), group="cold reads")
    start = outcome(
        "start",
        point(1, [0.3, 0.3, 0.4], [2.0, 2.0, 2.1]),
        group="process",
        goal=Goal(0.5, at_most=True),
        kind=Kind.SECONDS,
    )
    failed = outcome(
        "broken", Point(1, Status.FAILED, reason="PeerFailed: it ended\n\tat Class.java:1"), group="process"
    )
    found = Comparison({"rocketmq": "5.3.3", "tiermq": "0.1.0", "processors": 2}, ["python3 dev.py bench compare"])
    found.outcomes = {each.name: each for each in (fast, slow, free, start, failed)}
    return found
