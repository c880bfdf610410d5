"""The report of a run: `compare.md`, `compare.json` and pictures, in one directory.

`write` replaces all of them; pictures of a run before that are no longer made are removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.compare import picture_files, ratios, results, wording
from benchmarks.compare.results import Comparison, Outcome, Point, Status
from benchmarks.compare.wording import NOTHING
from benchmarks.compare.work import LIMIT, ROCKETMQ, TIERMQ, TUNED, Kind

MARKDOWN, JSON, PARTIAL = "compare.md", "compare.json", "compare.partial.json"
README = "README.md"
REASON_LENGTH = 300
BUSY_SHARE = 0.1
"""Of all processors: more than that for other programs, and the figures are of a busy machine."""
GROWTH = (
    "The works at 1, 4 and 16 times a part of their own data (0.25 is a quarter), both sides in turns: two rounds of "
    "each, up to five where they are short. Memory is the peak, resident."
)


def write(found: Comparison, out: Path, reasons: Mapping[str, str], with_pictures: bool = True) -> list[Path]:
    """All files of the report; what was written."""
    out.mkdir(parents=True, exist_ok=True)
    drawn: list[Path] = []
    if with_pictures:
        from benchmarks.compare import pictures  # Only here, because a report without pictures needs no matplotlib.

        drawn = pictures.draw_all(found, out)
    for stale in picture_files.drawn_before(out) - set(drawn):
        stale.unlink()
    results.save(out / JSON, with_ratios(found))
    (out / MARKDOWN).write_text(markdown(found, [path.name for path in drawn], reasons, out), encoding="utf-8")
    return [out / MARKDOWN, out / JSON, *drawn]


def with_ratios(found: Comparison) -> dict[str, Any]:
    """What is kept, and beside each point what follows from its rounds, for readers who do not compute."""
    reported = found.as_dict()
    for work in reported["works"]:
        outcome = found.outcomes[work["name"]]
        work["goal_met"] = ratios.is_met(outcome)
        for kept, points in ((outcome.points, work["points"]), (outcome.growth, work["growth"])):
            for point in points:
                point["ratios"] = _ratios(outcome, kept[point["scale"]])
    return reported


def _ratios(outcome: Outcome, point: Point) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, other in (("rocketmq", ROCKETMQ), ("rocketmq_tuned", TUNED), ("limit", LIMIT)):
        if found := ratios.ratio(point, outcome.kind, other):
            made[name] = {"median": found.median, "low": found.low, "high": found.high}
    made["processor_time"] = ratios.cpu_ratio(point, outcome.kind)
    made["resident_memory"] = ratios.memory_ratio(point)
    made["own_memory"] = ratios.memory_ratio(point, own=True)
    for side in point.samples:
        if one := ratios.figure(point, outcome.kind, side):
            made[f"{side}_median"], made[f"{side}_spread"] = one.median, one.spread
    return made


def markdown(found: Comparison, drawn: Sequence[str], reasons: Mapping[str, str], out: Path) -> str:
    """The whole text."""
    parts = [_opening(found, out)]
    parts += [_picture(picture_files.RATIOS, "TierMQ : RocketMQ of every work, with the goals", drawn)]
    parts += ["## Goals", goals_table(found)]
    for number, (group, outcomes) in enumerate(found.groups().items()):
        parts += ["## Works" if number == 0 else "", f"### {group}", *_group(group, outcomes, drawn)]
    parts += _growth(found, drawn)
    parts += _missed(found, reasons)
    parts += _not_measured(found)
    parts += _environment(found)
    return "\n\n".join(part for part in parts if part) + "\n"


def _opening(found: Comparison, out: Path) -> str:
    goals = [ratios.is_met(outcome) for outcome in found.outcomes.values() if outcome.goal]
    met, missed = goals.count(True), goals.count(False)
    summary = (
        f"Written by `python3 dev.py bench compare`. {len(found.outcomes)} works; of {len(goals)} goals {met} met, "
        f"{missed} missed, {goals.count(None)} without a figure. Both sides did the same work in turns "
        f"on one machine, in {_runs(found)}: RocketMQ {found.environment.get('rocketmq', NOTHING)} and "
        f"TierMQ {found.environment.get('tiermq', NOTHING)}."
    )
    lines = ["# TierMQ beside RocketMQ", "", summary]
    if any(point.quick for point in found.points()):
        lines += ["", "**Some of this is a quick look (`--quick`): little data, few rounds. No verdict.**"]
    lines += _versions(found)
    lines += _busy(found)
    lines += ["", _settings(found)]
    guide = f"[{README}]({README})" if (out / README).exists() else "`docs/benchmarks/README.md`"
    return "\n".join([*lines, "", f"How to read and repeat it: {guide}. Every round: `{JSON}`."])


def _busy(found: Comparison) -> list[str]:
    """What other programs took of the processors while works were measured. The load average cannot say: it is mostly
    that of the work before.
    """
    measured = [point for point in found.points() if point.is_measured]
    processors = found.environment.get("processors") or 1
    unknown = sum(point.others is None for point in measured)
    most = max((point.others for point in measured if point.others is not None), default=0.0)
    lines = []
    if measured and unknown < len(measured):
        busy, share = most > BUSY_SHARE * processors, f"up to {most:.2f} of {processors} processors"
        lines += ["", f"**The machine was busy: other programs used {share}.**" if busy else f"Others used {share}."]
    if unknown:
        lines += ["", f"**What else the machine did is not known of {unknown} of {len(measured)} points.**"]
    return lines


def _versions(found: Comparison) -> list[str]:
    measured = [point for point in found.points() if point.is_measured]
    counts = [
        f"{version or 'an unknown version'}: {sum(point.version == version for point in measured)}"
        for version in sorted({point.version for point in measured})
    ]
    if len(counts) < 2:
        return []
    return ["", f"**These figures are of more than one version, of {len(measured)} points: {'; '.join(counts)}.**"]


def _settings(found: Comparison) -> str:
    processors, java, heap = (found.environment.get(name, NOTHING) for name in ("processors", "java", "java_heap"))
    return (
        f"Client, broker and load of both sides share {processors} processors, unpinned. Settings are RocketMQ's "
        f"defaults on both sides unless a work's line says otherwise; RocketMQ runs on {java}, {heap}."
    )


def _runs(found: Comparison) -> str:
    return "one run" if len(found.commands) <= 1 else f"{len(found.commands)} runs"


def goals_table(found: Comparison) -> str:
    """Works with a goal, one row each."""
    rows = []
    for outcome in found.outcomes.values():
        if outcome.goal is None:
            continue
        base = outcome.base
        if base is None:
            rows.append(
                [
                    f"`{outcome.name}`",
                    NOTHING,
                    NOTHING,
                    wording.goal(outcome.goal, outcome.kind),
                    "not measured",
                    "",
                    "",
                ]
            )
            continue
        against = ratios.ratio(base, outcome.kind)
        rows.append(
            [
                f"`{outcome.name}`",
                wording.ratio(against),
                wording.ratio_range(against),
                wording.goal(outcome.goal, outcome.kind),
                wording.verdict(outcome),
                wording.ratio(ratios.limit_ratio(base, outcome.kind)),
                _memory_ratio(base),
            ]
        )
    if not rows:
        return "None of these works has a goal."
    columns = ["work", "TierMQ : RocketMQ", "range", "goal", "met", "TierMQ : limit", "memory, resident (own)"]
    return table(columns, rows)


def _memory_ratio(point: Point) -> str:
    whole, own = ratios.memory_ratio(point), ratios.memory_ratio(point, own=True)
    return NOTHING if whole is None else f"{wording.plain(whole)} ({wording.plain(own)})"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column to the left, figures to the right."""
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def _group(group: str, outcomes: Sequence[Outcome], drawn: Sequence[str]) -> list[str]:
    measured = [(outcome, outcome.base) for outcome in outcomes if outcome.base is not None]
    if not measured:
        return ["Nothing of this group was measured at its own size."]
    figures, memory, about = [], [], []
    has_tuned = any(TUNED in base.samples for _, base in measured)
    for outcome, base in measured:
        kind = outcome.kind
        against = ratios.ratio(base, kind)
        figures.append(
            [
                f"`{outcome.name}`",
                *(wording.figure(ratios.figure(base, kind, side), kind) for side in (TIERMQ, ROCKETMQ, LIMIT)),
                wording.ratio(against),
                wording.ratio_range(against),
                wording.plain(ratios.cpu_ratio(base, kind)),
                wording.ratio(ratios.limit_ratio(base, kind)),
                *([_tuned(base, kind)] if has_tuned else []),
            ]
        )
        if base.memory:
            sides = (wording.memory(base, side) for side in (TIERMQ, ROCKETMQ))
            memory.append([f"`{outcome.name}`", *sides, _memory_ratio(base)])
        about.append(_about(outcome, base))
    columns = [
        "work",
        "TierMQ",
        "RocketMQ",
        "limit",
        "TierMQ : RocketMQ",
        "range",
        "by processor time",
        "TierMQ : limit",
        *(["TierMQ : RocketMQ with a fixed heap and epoll"] if has_tuned else []),
    ]
    parts = [table(columns, figures)]
    if memory:
        parts.append(table(["memory, peak", "TierMQ", "RocketMQ", "TierMQ : RocketMQ, resident (own)"], memory))
    parts += [
        _picture(name, f"Rounds of {group} over time", drawn) for name in picture_files.names_of("time", group, drawn)
    ]
    return [*parts, "\n".join(about)]


def _tuned(base: Point, kind: Kind) -> str:
    against = ratios.ratio(base, kind, TUNED)
    if against is None:
        return NOTHING
    theirs = wording.figure(ratios.figure(base, kind, TUNED), kind)
    return f"{wording.ratio(against)} ({wording.ratio_range(against)}), {theirs}"


def _about(outcome: Outcome, base: Point) -> str:
    rounds = len(base.samples.get(TIERMQ, []))
    reported = [f"- `{outcome.name}`: {outcome.title}; {rounds} rounds"]
    first = base.samples[TIERMQ][0].done
    if outcome.kind is not Kind.BYTES and first.messages:
        size = f", {wording.megabytes(first.bytes)}" if first.bytes else ""
        reported.append(f" of {first.messages:,} messages{size}")
    reported.append(f". Limit: {outcome.limit}." if outcome.limit else ".")
    notes = {name: note for name, note in base.notes.items() if name != "warm-up rounds"}
    if notes:
        reported.append(" " + "; ".join(f"{name}: {_note(note)}" for name, note in notes.items()) + ".")
    return "".join(reported)


def _note(note: object) -> str:
    if isinstance(note, Mapping):
        return ", ".join(f"{name} {_note(each)}" for name, each in note.items())
    if isinstance(note, list | tuple):
        return ", ".join(map(_note, note))
    return f"{note:,}" if isinstance(note, int) and not isinstance(note, bool) else str(note).rstrip(".")


def _growth(found: Comparison, drawn: Sequence[str]) -> list[str]:
    grown = [outcome for outcome in found.outcomes.values() if outcome.growth]
    if not grown:
        return []
    parts = ["## Growth", GROWTH]
    for group in dict.fromkeys(outcome.group for outcome in grown):
        rows = [row for outcome in grown if outcome.group == group for row in _growth_rows(outcome)]
        columns = ["work", "data", "of the work's own", "TierMQ", "RocketMQ", "TierMQ : RocketMQ", "range"]
        parts += [f"### {group}, growing", table([*columns, "memory TierMQ", "memory RocketMQ"], rows)]
        parts += [
            _picture(name, f"{group}: rate and memory over data", drawn)
            for name in picture_files.names_of("growth", group, drawn)
        ]
    return parts


def _growth_rows(outcome: Outcome) -> list[list[str]]:
    rows = []
    for scale, point in sorted(outcome.growth.items()):
        begins = [f"`{outcome.name}`", _data(point), wording.plain(scale / point.part)]
        if not point.is_measured:
            rows.append([*begins, point.status.value, *[NOTHING] * 5])
            continue
        against = ratios.ratio(point, outcome.kind)
        sides = (TIERMQ, ROCKETMQ)
        peaks = [point.memory[side].peak_bytes if side in point.memory else None for side in sides]
        rows.append(
            [
                *begins,
                *(wording.figure(ratios.figure(point, outcome.kind, side), outcome.kind) for side in sides),
                wording.ratio(against),
                wording.ratio_range(against),
                *(NOTHING if peak is None else wording.megabytes(peak) for peak in peaks),
            ]
        )
    return rows


def _data(point: Point) -> str:
    """How much data a point has, in words: what its work noted of it."""
    amount = point.amount
    return f"{point.scale}×" if amount is None else f"{point.scale}×: {amount[0]:,} {amount[1]}"


def _missed(found: Comparison, reasons: Mapping[str, str]) -> list[str]:
    missed = [outcome for outcome in found.outcomes.values() if ratios.is_met(outcome) is False]
    if not any(outcome.goal for outcome in found.outcomes.values()):
        return []
    parts = ["## Missed goals"]
    if not missed:
        return [*parts, "None of those that were measured."]
    for outcome in missed:
        assert outcome.goal is not None
        assert outcome.base is not None
        against = ratios.ratio(outcome.base, outcome.kind)
        way = "above" if outcome.goal.is_upper else "below"
        ours = ratios.figure(outcome.base, outcome.kind, TIERMQ)
        own = f"{wording.figure(ours, outcome.kind)}, TierMQ : RocketMQ " if outcome.goal.own else ""
        parts.append(f"### {outcome.name}")
        parts.append(
            f"{outcome.title}: {own}{wording.ratio(against)} ({wording.ratio_range(against)}), "
            f"goal {wording.goal(outcome.goal, outcome.kind)}: {ratios.shortfall(outcome):.0%} {way} it."
        )
        parts.append(reasons.get(outcome.name, "Not looked into yet."))
    return parts


def _not_measured(found: Comparison) -> list[str]:
    rows = [
        [f"`{outcome.name}`", _data(point), point.status.value, _in_a_cell(point.reason)]
        for outcome in found.outcomes.values()
        for point in outcome.all_points()
        if not point.is_measured
    ]
    if not rows:
        return []
    lines = [f"| {' | '.join(row)} |" for row in [["work", "data", "what", "why"], ["---"] * 4, *rows]]
    return ["## Not measured", "\n".join(lines)]


def _in_a_cell(reason: str) -> str:
    """A reason without its stack of calls, which the JSON has."""
    lines = [line.strip() for line in reason.splitlines() if not line.lstrip().startswith("at ")]
    return " ".join(lines)[:REASON_LENGTH].replace("|", "\\|")


def _when(points: Sequence[Point]) -> str:
    first, last = (datetime.fromtimestamp(pick(point.started_at for point in points), UTC) for pick in (min, max))
    return f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"


def _environment(found: Comparison) -> list[str]:
    rows = [[name.replace("_", " "), str(reported)] for name, reported in found.environment.items()]
    measured = [point for point in found.points() if point.status is Status.MEASURED]
    if measured:
        others = [point.others for point in measured if point.others is not None]
        if others:
            rows.append(["processors used by others while measured", f"{min(others):.2f} to {max(others):.2f}"])
        rows.append(["measured", _when(measured)])
        rows.append(["time spent measuring", wording.duration(sum(point.seconds for point in measured))])
    lines = [f"| {' | '.join(row)} |" for row in [["environment", ""], ["---", "---"], *rows]]
    commands = "\n".join(["```", *found.commands, "```"])
    return ["## Environment", "\n".join(lines), "## Commands", commands, REPEAT]


REPEAT = (
    "One work by itself: `python3 dev.py bench compare --only NAME`. What there is: "
    "`python3 dev.py bench compare --list`."
)


def _picture(name: str, about: str, drawn: Sequence[str]) -> str:
    return f"![{about}]({name})" if name in drawn else ""


def move_partial(out: Path) -> Path | None:
    """Put the state of an unfinished run aside before a new one begins; where it is now."""
    partial = out / PARTIAL
    if not partial.exists():
        return None
    aside = out / f"{PARTIAL}.before"
    shutil.move(partial, aside)
    return aside
