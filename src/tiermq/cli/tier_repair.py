"""`tiermq tier repair`: mend what `tiermq tier verify` found, from whatever still has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from tiermq.cli.tier_options import BROKER, CLUSTER, EXIT_PROBLEMS, JSON, TOPIC, URL, metadata_path, opened, print_json
from tiermq.store.read_only_store import ReadOnlyStore
from tiermq.store.store_files import is_store
from tiermq.tier.known_metadata import open_known_metadata
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.repair.repair import repair_tier
from tiermq.tier.repair.repair_report import RepairOutcome, RepairReport
from tiermq.tier.tier_listing import TierScope


@click.command()
@URL
@CLUSTER
@BROKER
@TOPIC
@click.option(
    "--store",
    "stores",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A store directory that may still have lost messages; may be given repeatedly.",
)
@click.option("--no-index", is_flag=True, help="Do not read the key index, and do not mend it.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
@JSON
def repair(
    url: str,
    cluster: str | None,
    broker: str | None,
    topic: str | None,
    stores: tuple[Path, ...],
    no_index: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Verify the tier at URL, mend what can be mended, and verify it again.

    Lost records come from the --store directories, consume queues and the key index from the records, manifests from
    the segments. What a broker knows of its tier, if it is in a --store directory, is used and brought up to date. The
    broker must not run: its lease is taken meanwhile.

    Nothing is destroyed: a segment that gets other bytes is kept as <its name>.damaged-<time>, which neither TierMQ nor
    RocketMQ looks at; remove those files once you are content. An interrupted repair is simply run again.

    Exit code: 0 nothing is wrong (any more), 1 something is left, 2 the tier cannot be read or its broker is at work.

    \b
    Examples:
      tiermq tier repair file:///var/tier --dry-run
      tiermq tier repair s3://history --store ~/store
      tiermq tier repair s3://history --topic orders --json | jq '.actions[] | .not_possible[]'
    """
    with opened(url) as driver, _opened_stores(stores) as (sources, metadata):
        report = repair_tier(
            driver,
            TierScope(cluster, broker, topic),
            sources=sources,
            metadata=metadata,
            dry_run=dry_run,
            with_index=not no_index,
            on_outcome=(lambda _outcome: None) if as_json else _show_outcome,
        )
    if as_json:
        print_json(report.to_dict())
    else:
        _show_end(report)
    if not report.is_complete or (dry_run and report.outcomes):
        raise SystemExit(EXIT_PROBLEMS)


@contextmanager
def _opened_stores(paths: Sequence[Path]) -> Iterator[tuple[list[ReadOnlyStore], MetadataStore | None]]:
    """The stores, only to be read, and what the first that knows anything knows of the tier."""
    with ExitStack() as stack:
        known = next((path for path in paths if metadata_path(path).is_file()), None)
        metadata = None if known is None else stack.enter_context(open_known_metadata(known))
        # A directory may hold only what a broker knows, and no messages any more.
        yield [stack.enter_context(ReadOnlyStore.open(path)) for path in paths if is_store(path)], metadata


def _show_outcome(outcome: RepairOutcome) -> None:
    click.echo(f"{outcome.state.value:12}  {outcome.action.kind.name.lower():8}  {outcome.action.where}")
    for change in outcome.changes:
        click.echo(f"    {change}")
    for path in outcome.kept:
        click.echo(f"    kept as {path}")
    for reason in outcome.not_possible:
        click.echo(f"    not possible: {reason}")


def _show_end(report: RepairReport) -> None:
    if not report.outcomes:
        click.echo(f"{report.url}: clean, there is nothing to repair")
    elif report.is_dry_run:
        click.echo(f"{report.url}: {report.problems_before:,} problems; nothing was changed")
    else:
        click.echo(f"{report.url}: {report.problems_before:,} problems before, {report.problems_after:,} after")
