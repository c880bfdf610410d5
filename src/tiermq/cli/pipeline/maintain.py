"""`tiermq pipeline maintain`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tiermq.cli.option_values import parse_hours
from tiermq.cli.pipeline.options import finish, job_options, runner_for
from tiermq.cli.terminal import bar

if TYPE_CHECKING:
    from tiermq.pipeline.job_report import JobReport


@click.command()
@click.option("--table", required=True, metavar="KIND:PLACE", help="An export's table: delta:s3://…, iceberg:ns.table.")
@click.option("--catalog", help="Iceberg: sqlite:////file.db, or the name of a pyiceberg catalog.")
@click.option("--warehouse", metavar="PLACE", help="Iceberg: where tables are created [beside the sqlite file].")
@click.option("--file-mib", type=click.IntRange(1), default=128, show_default=True, help="Size of new files, in MiB.")
@click.option("--keep", metavar="TIME", default="7d", show_default=True, help="Keep younger versions: 72h, 30d, 8w.")
@click.option("--no-compact", is_flag=True, help="Leave small files as they are.")
@click.option("--no-expire", is_flag=True, help="Leave old versions and their files.")
@click.option("--force", is_flag=True, help="Allow --keep below 7d: no query and no export of the table is running.")
@job_options
def maintain(
    table: str,
    catalog: str | None,
    warehouse: str | None,
    file_mib: int,
    keep: str,
    no_compact: bool,
    no_expire: bool,
    force: bool,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Merge small files of an exported Delta or Iceberg table, and delete its old versions. Its rows stay the same.

    Small files that follow each other become one, on executors, in the order of queues and offsets, so that a replay
    of the table keeps its order. Then versions (Delta) or snapshots (Iceberg) older than --keep are dropped by the
    format's own library, with the files that only they have; so are files that a killed export left.

    An export may run meanwhile. If another program replaces one of the files meanwhile, nothing is committed. A table
    of upserts is not compacted: its merges do that.

    Exit code: 0, or 1 if it failed.

    \b
    Examples:
      tiermq pipeline maintain --table delta:s3://lake/orders --dry-run
      tiermq pipeline maintain --table iceberg:lake.orders \\
          --catalog sqlite:////lake/catalog.db --keep 30d
    """
    from tiermq.pipeline.maintain import maintain as run

    keep_hours = 0 if keep == "0h" else parse_hours("--keep", keep)
    with runner_for(master, conf, needed=not dry_run) as runner, bar("compacting", quiet=as_json) as progress:
        report = run(
            runner,
            table=table,
            catalog=catalog,
            warehouse=warehouse,
            file_bytes=file_mib << 20,
            keep_hours=keep_hours,
            compact=not no_compact,
            expire=not no_expire,
            force=force,
            dry_run=dry_run,
            progress=progress,
        )
    finish(report, as_json=as_json, details=_lines)


def _lines(report: JobReport) -> Iterator[str]:
    for names in report.details.get("compact", ()) if report.dry_run else ():
        yield f"would merge {len(names)} files from {names[0]}"
    for name in report.details.get("expired", ()) if report.dry_run else ():
        yield f"would delete {name}"
