"""What a campaign did and found: Markdown for people, JSON for programs, and the figures in `docs/guarantees.md`."""

from __future__ import annotations

import json
import platform
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from campaign.part import Part
from campaign.runner import Total

ATTACKS = ("troubles", "kills", "cuts", "damages", "inputs", "requests", "driver_calls", "flows", "floods", "bombs")
"""What parts count that call their faults by a name of their own."""
BROKEN = (
    "Promises broken, {count}: [campaign/last.md](campaign/last.md#found) has what was seen, "
    "[campaign/found.md](campaign/found.md) the defects that are fixed, each with the test that holds it since."
)
BEGIN, END = "<!-- campaign: begin -->", "<!-- campaign: end -->"


def as_dict(
    parts: Sequence[Part], totals: Mapping[str, Total], root_seed: int, skipped: Mapping[str, str]
) -> dict[str, Any]:
    """The object that `--json` prints."""
    commit = _commit()
    return {
        "seed": root_seed,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "parts": [
            {
                "name": part.name,
                "seed": root_seed,
                "commit": commit,
                "title": part.title,
                "rounds": totals[part.name].rounds,
                "seconds": round(totals[part.name].seconds, 1),
                "counts": dict(sorted(totals[part.name].counts.items())),
                "peaks": totals[part.name].peaks,
                "findings": [
                    {"seed": done.seed, "kept": done.kept, **asdict(found)}
                    for done in totals[part.name].findings
                    for found in done.outcome.findings
                ],
            }
            for part in parts
        ],
        "not_run": dict(skipped),
    }


def as_markdown(reported: Mapping[str, Any]) -> str:
    """The report for people."""
    lines = [
        "# The last campaign",
        "",
        f"`python3 dev.py prove --seed {reported['seed']}`; Python {reported['python']}, {reported['system']}.",
        "",
    ]
    lines += _table(reported)
    lines += _runs(reported)
    lines += ["", "What earlier campaigns found, and the tests that hold it since: [found.md](found.md)."]
    for name, reason in reported["not_run"].items():
        lines += ["", f"Not run: `{name}`, {reason}."]
    lines += ["", *_counted(reported), "", "## Found", ""]
    findings = [(part["name"], found) for part in reported["parts"] for found in part["findings"]]
    if not findings:
        lines.append("Nothing.")
    for name, found in findings:
        lines += [
            f"### {name}, seed {found['seed']}",
            "",
            f"Promised: {found['promise']}. Repeat: `python3 dev.py prove --part {name} --round {found['seed']}`.",
            "",
            "```text",
            *found["found"].strip().splitlines(),
            *found["steps"],
            "```",
            "",
        ]
    return "\n".join(lines) + "\n"


def _table(reported: Mapping[str, Any]) -> list[str]:
    """A row for each part, and one for all of them."""
    lines = [
        "| part | rounds | hours | faults and attacks | messages checked | promises broken |",
        "|---|---|---|---|---|---|",
    ]
    parts = reported["parts"]
    rows = [_row(_title(part, reported["seed"]), [part]) for part in parts]
    return [*lines, *rows, _row("all", parts)]


def _title(part: Mapping[str, Any], root_seed: int) -> str:
    """A part of another campaign that was published before names its own seed."""
    seeds = [run["seed"] for run in part.get("runs", ())] or [part.get("seed", root_seed)]
    named = "" if seeds == [root_seed] else f", seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    return f"{part['title']} (`{part['name']}`{named})"


def _commit() -> str:
    """What is checked out; empty where that is not known."""
    found = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def summed(before: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Both campaigns of one part as one, with the seed, the commit and the rounds of each in `runs`; it has a commit
    only if both have the same.
    """
    runs = [run for each in (before, part) for run in each.get("runs", [_run(each)])]
    names = before["peaks"].keys() | part["peaks"].keys()
    commits = {run["commit"] for run in runs}
    return {
        **part,
        "commit": commits.pop() if len(commits) == 1 else "",
        "rounds": before["rounds"] + part["rounds"],
        "seconds": round(before["seconds"] + part["seconds"], 1),
        "counts": dict(sorted((Counter(before["counts"]) + Counter(part["counts"])).items())),
        "peaks": {name: max(before["peaks"].get(name, 0), part["peaks"].get(name, 0)) for name in sorted(names)},
        "findings": [*before["findings"], *part["findings"]],
        "runs": runs,
    }


def _run(part: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: part.get(name, "") for name in ("seed", "commit", "rounds")}
    return {**found, "findings": len(part["findings"])}


def _runs(reported: Mapping[str, Any]) -> list[str]:
    """Which campaigns a row sums up."""
    lines: list[str] = []
    for part in reported["parts"]:
        for run in part.get("runs", ()):
            found = f", {run['findings']} found" if run["findings"] else ""
            commit = run["commit"] or "an earlier commit"
            lines.append(f"- `{part['name']}`: {run['rounds']} rounds of seed {run['seed']} on {commit}{found}.")
    return ["", "Rows that sum several campaigns:", "", *lines] if lines else []


def merged(reported: Mapping[str, Any], before: Mapping[str, Any], *, add: bool = False) -> dict[str, Any]:
    """What was published, with the parts of this campaign in place of the same parts there; new ones at the end.

    `add`: instead of in their place, with the rounds of both.
    """
    now = {part["name"]: part for part in reported["parts"]}
    kept = [{"seed": before["seed"], **part} for part in before["parts"]]
    if add:
        now |= {part["name"]: summed(part, now[part["name"]]) for part in kept if part["name"] in now}
    if {part["name"] for part in kept} <= now.keys():
        return {**reported, "parts": list(now.values())}
    parts = [now.pop(part["name"], part) for part in kept] + list(now.values())
    not_run = {**before["not_run"], **reported["not_run"]}
    run = {part["name"] for part in parts}
    return {**before, "parts": parts, "not_run": {name: why for name, why in not_run.items() if name not in run}}


def _row(title: str, parts: Sequence[Mapping[str, Any]]) -> str:
    rounds, seconds = (sum(part[name] for part in parts) for name in ("rounds", "seconds"))
    attacks, checked, broken = (sum(map(count, parts)) for count in (_attacks, _checked, _broken))
    return f"| {title} | {rounds:,} | {seconds / 3600:.2f} | {attacks:,} | {checked:,} | {broken:,} |"


def _attacks(part: Mapping[str, Any]) -> int:
    counts = part["counts"]
    return int(counts.get("faults_injected", 0) or sum(counts.get(name, 0) for name in ATTACKS))


def _checked(part: Mapping[str, Any]) -> int:
    counts = part["counts"]
    return int(counts.get("messages_checked", counts.get("acknowledged", 0)))


def _broken(part: Mapping[str, Any]) -> int:
    return len(part["findings"])


def _counted(reported: Mapping[str, Any]) -> list[str]:
    """Everything that the parts counted, for readers who want to know what a row stands for."""
    lines = ["## Counted", ""]
    for part in reported["parts"]:
        counted = [f"{amount:,} {name.replace('_', ' ')}" for name, amount in part["counts"].items() if amount]
        counted += [f"at most {value:,.0f} {name.replace('_', ' ')}" for name, value in part["peaks"].items()]
        if counted:
            lines.append(f"- `{part['name']}`: {', '.join(counted)}.")
    return lines


def publish(reported: Mapping[str, Any], directory: Path, guarantees: Path, *, add: bool = False) -> None:
    """Write the report's files, and its table between the marks in the guarantees.

    Parts that this campaign did not have stay as they were published. `add`: see `merged`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if (directory / "last.json").exists():
        reported = merged(reported, json.loads((directory / "last.json").read_text(encoding="utf-8")), add=add)
    (directory / "last.md").write_text(as_markdown(reported), encoding="utf-8")
    (directory / "last.json").write_text(json.dumps(reported, indent=1) + "\n", encoding="utf-8")
    text = guarantees.read_text(encoding="utf-8")
    before, begun, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise ValueError(f"{guarantees.name}: expected {BEGIN} and {END}, where the figures go, found none")
    broken = sum(map(_broken, reported["parts"]))
    where = ["", BROKEN.format(count=broken)] if broken else []
    table = "\n".join(["", f"Seed {reported['seed']}.", "", *_table(reported), *where, ""])
    guarantees.write_text(f"{before}{BEGIN}{table}{END}{after}", encoding="utf-8")
