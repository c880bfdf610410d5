"""`tiermq dump`: any file of a store directory as JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tiermq.store.inspect import ROW_KINDS
from tiermq.store.inspect import dump as rows_of


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(ROW_KINDS),
    metavar="KIND",
    help="Only rows of this kind; may be given repeatedly.",
)
@click.option("--slots", type=click.IntRange(min=1), help="maxHashSlotNum of the index files, if it cannot be told.")
@click.option("--json", "as_json", is_flag=True, help="Accepted for uniformity: the output always is JSON lines.")
def dump(path: Path, kinds: tuple[str, ...], slots: int | None, as_json: bool) -> None:  # noqa: ARG001
    """Show PATH, a file or a whole store directory, as JSON lines.

    What a file is, is told from its path: commitlog/, consumequeue/, consumequeue_ext/, batchconsumequeue/, index/,
    checkpoint, abort, lock, config/. The directory may be in use: nothing is written and no lock is taken.

    \b
    Kinds of rows:
      record blank unit pre_blank_unit ext_unit batch_unit index_header index_entry
      checkpoint config abort lock other damage

    A damaged place is a row with "error". The exit code is 1 if there was one, else 0.

    \b
    Examples:
      tiermq dump ~/store/commitlog/00000000000000000000
      tiermq dump ~/store/consumequeue/orders/0
      tiermq dump ~/store --kind damage
      tiermq dump ~/store/commitlog | jq -r 'select(.topic == "orders") | .body'
    """
    damaged = False
    for row in rows_of(path, slot_count=slots):
        damaged = damaged or "error" in row
        if not kinds or row["kind"] in kinds:
            click.echo(json.dumps(row))
    if damaged:
        raise SystemExit(1)
