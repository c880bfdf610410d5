"""`python3 dev.py prove`: see `--help`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from campaign import report
from campaign.part import Part
from campaign.plan import all_parts
from campaign.runner import Campaign, Done

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "docs" / "campaign"
GUARANTEES = ROOT / "docs" / "guarantees.md"
EXIT_FOUND = 1


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--part", "names", multiple=True, metavar="NAME", help="Only this part; may be repeated.")
@click.option("--rounds", type=click.IntRange(min=1), help="So many rounds of each part, instead of its own number.")
@click.option("--minutes", type=click.FloatRange(min=0), help="Begin no round after so long.")
@click.option("--seed", type=int, help="Root seed: the same one makes the same rounds [by the clock].")
@click.option("--round", "one_seed", type=int, metavar="SEED", help="Repeat this round of the one part that is named.")
@click.option("--shrink", is_flag=True, help="With --round: look for the shortest way to what it finds.")
@click.option("--resume", is_flag=True, help="Go on with the campaign in --dir.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=ROOT / ".campaign",
    help="Record and scratch [.campaign].",
)
@click.option("--publish", is_flag=True, help="Write docs/campaign and the figures in docs/guarantees.md.")
@click.option("--add", is_flag=True, help="With --publish: add the rounds to those that were published of a part.")
@click.option("--list", "listing", is_flag=True, help="List the parts, and what each needs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def prove(
    names: tuple[str, ...],
    rounds: int | None,
    minutes: float | None,
    seed: int | None,
    one_seed: int | None,
    shrink: bool,
    resume: bool,
    directory: Path,
    publish: bool,
    add: bool,
    listing: bool,
    as_json: bool,
) -> None:
    """Try to break what TierMQ promises: simulated lives, power cuts, kills, bad disks, bad networks, hostile input.

    Rounds of all parts take turns; each follows from its seed. What was done is written after every round, so that a
    campaign goes on with --resume. A long campaign takes hours: --minutes ends one early, and what it has done counts.

    Exit code: 0 when every promise held, 1 when one did not, 2 for wrong arguments.

    \b
    Examples:
      python3 dev.py prove --minutes 10
      python3 dev.py prove --part simulation --rounds 1000
      python3 dev.py prove --resume --publish
      python3 dev.py prove --part simulation --round 123456789 --shrink
    """
    chosen = _chosen(names)
    if listing:
        for part in chosen:
            click.echo(f"{part.name:18} {part.rounds:6,} rounds  {part.title}{_needs(part)}")
        return
    if one_seed is not None:
        _repeat(chosen, one_seed, directory, shrink=shrink)
        return
    skipped = {part.name: reason for part in chosen if (reason := part.missing())}
    running = [part for part in chosen if part.name not in skipped]
    kept = directory / "campaign.json"
    if resume and kept.exists():
        seed = int(json.loads(kept.read_text())["seed"])
    elif (directory / "rounds.jsonl").exists():
        if resume:
            raise click.UsageError(f"{kept} is missing, so the seed of that campaign is not known")
        (directory / "rounds.jsonl").unlink()
    seed = time.time_ns() // 1_000_000 % 1_000_000_000 if seed is None else seed
    directory.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({"seed": seed}))
    campaign = Campaign(directory, running, seed)
    if resume:
        click.echo(f"going on after {campaign.resume()} rounds", err=True)
    _run(campaign, rounds, None if minutes is None else time.monotonic() + 60 * minutes, skipped)
    reported = report.as_dict(running, campaign.totals, seed, skipped)
    if publish:
        report.publish(reported, PUBLISHED, GUARANTEES, add=add)
    if as_json:
        click.echo(json.dumps(reported))
    else:
        click.echo(report.as_markdown(reported))
    if any(total.findings for total in campaign.totals.values()):
        sys.exit(EXIT_FOUND)


def _needs(part: Part) -> str:
    reason = part.missing()
    return f" (not here: {reason})" if reason else ""


def _chosen(names: tuple[str, ...]) -> list[Part]:
    parts = {part.name: part for part in all_parts()}
    unknown = [name for name in names if name not in parts]
    if unknown:
        raise click.UsageError(f"there is no part {unknown[0]!r}; there are {', '.join(parts)}")
    return [parts[name] for name in names] if names else list(parts.values())


def _run(campaign: Campaign, rounds: int | None, until_s: float | None, skipped: dict[str, str]) -> None:
    console = Console(stderr=True)
    for name, reason in skipped.items():
        console.print(f"{name}: not run, {reason}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[state]}"), console=console) as progress:
        bars: dict[str, Any] = {}
        for part in campaign.parts:
            total = rounds or part.rounds
            done = campaign.totals[part.name].rounds
            bars[part.name] = progress.add_task(part.name, total=max(total, done), completed=done, state="")

        def begins(part: Part, seed: int) -> None:
            progress.update(bars[part.name], state=f"seed {seed}")

        def ends(done: Done) -> None:
            found = len(campaign.totals[done.part].findings)
            state = f"[red]{found} with findings[/red]" if found else "nothing found"
            progress.update(bars[done.part], advance=1, state=state)
            for finding in done.outcome.findings:
                progress.console.print(
                    f"[red]{done.part} {done.seed}[/red]: {finding.promise}\n{finding.found}", markup=True
                )

        campaign.run(rounds, until_s, begins, ends)


def _repeat(chosen: list[Part], seed: int, directory: Path, *, shrink: bool) -> None:
    if len(chosen) != 1:
        raise click.UsageError("--round repeats a round of one part: name it by --part")
    part = chosen[0]
    if reason := part.missing():
        raise click.ClickException(f"{part.name} cannot run here: {reason}")
    campaign = Campaign(directory / "repeated", chosen, 0)
    done = campaign.one(part, seed)
    findings = done.outcome.findings
    if shrink and findings:
        shorter = part.shrink(seed, directory / "repeated")
        findings = findings if shorter is None else [shorter]
    for finding in findings:
        click.echo("\n".join([f"promised: {finding.promise}", f"found: {finding.found}", *finding.steps]))
    if not findings:
        click.echo(f"{part.name} {seed}: every promise held; {dict(done.outcome.counts)}")
        return
    sys.exit(EXIT_FOUND)


if __name__ == "__main__":
    prove(prog_name="python3 dev.py prove")
