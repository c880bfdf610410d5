"""`tiermq dump`: print files of a store directory or a tier as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tiermq.console.json_case import camel_row
from tiermq.delivery.timer_dump import (
    TIERED_TIMER_ROW_KINDS,
    TIMER_ROW_KINDS,
    dump_tiered_timer_file,
    dump_timer_file,
    is_tiered_timer_file,
    is_timer_file,
)
from tiermq.store.readonly.directory import is_store
from tiermq.store.readonly.dump import ROW_KINDS as STORE_ROW_KINDS
from tiermq.store.readonly.dump import dump as store_rows
from tiermq.tier.tier_dump import TIER_ROW_KINDS, classify_tier_file, dump_tier, list_tier_files

ROW_KINDS = tuple(dict.fromkeys((*STORE_ROW_KINDS, *TIMER_ROW_KINDS, *TIER_ROW_KINDS, *TIERED_TIMER_ROW_KINDS)))


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(ROW_KINDS),
    metavar="KIND",
    help="Only rows of this kind; repeatable.",
)
@click.option(
    "--slots", type=click.IntRange(min=1), help="Slots of the index files (maxHashSlotNum), if it cannot be detected."
)
@click.option("--json", "as_json", is_flag=True, help="Accepted for uniformity: the output always is JSON lines.")
def dump(path: Path, kinds: tuple[str, ...], slots: int | None, as_json: bool) -> None:  # noqa: ARG001
    """Print PATH, a file or directory of a store or a tier, as JSON lines.

    The path determines the type of a file: commitlog/, consumequeue/, consumequeue_ext/, batchconsumequeue/, index/,
    checkpoint, abort, lock, config/, timerwheel, timerlog/; in a tier COMMIT_LOG/, CONSUME_QUEUE/, INDEX/,
    bundles.tiermq/, *.tiermq.json, *.tiermq.timers, and on a broker's disk tiered_index_file/. The directory may be in
    use: nothing is written and no lock is taken.

    \b
    Kinds of rows:
      record blank unit pre_blank_unit ext_unit batch_unit index_header
      index_entry checkpoint config abort lock other damage timer_slot
      timer_unit timer_checkpoint end_mark tier_index_header tier_index_item
      tier_index_part seal_mark staged_keys manifest lease changes companion
      document far_manifest far_timer bundle bundled_range bundle_cut

    Damage is a row with "error". The exit code is 1 if there was one, else 0.

    \b
    Examples:
      tiermq dump ~/store/commitlog/00000000000000000000
      tiermq dump ~/store/consumequeue/orders/0
      tiermq dump ~/store --kind damage
      tiermq dump /var/tier/212d6b50_DefaultCluster/broker-a/orders --kind record
      tiermq dump ~/store/commitlog | jq -r 'select(.topic == "orders") | .body'
    """
    damaged = False
    for row in _rows_of(path, slots):
        damaged = damaged or "error" in row
        if not kinds or row["kind"] in kinds:
            click.echo(json.dumps(camel_row(row)))
    if damaged:
        raise SystemExit(1)


def _rows_of(path: Path, slots: int | None) -> Iterator[dict[str, Any]]:
    """The rows of store files, then of tier files; files of a tier are not reported as unknown files of a store."""
    if not path.is_dir():
        if is_tiered_timer_file(path.absolute()):
            yield from dump_tiered_timer_file(path, path.name)
            return
        if is_timer_file(path.absolute()):
            yield from dump_timer_file(path, path.name)
            return
        file = classify_tier_file(path)
        yield from store_rows(path, slot_count=slots) if file is None else dump_tier(file, path.name, slot_count=slots)
        return
    root = path.absolute()
    far_files = {
        file.relative_to(root).as_posix(): file for file in sorted(root.rglob("*")) if is_tiered_timer_file(file)
    }
    tier_files = {file.path.relative_to(root).as_posix(): file for file in list_tier_files(root)}
    tier_files = {name: file for name, file in tier_files.items() if name not in far_files}
    if is_store(path) or not (tier_files or far_files):
        for row in store_rows(path, slot_count=slots):
            if row["kind"] == "other" and is_timer_file(root / row["file"]):
                yield from dump_timer_file(root / row["file"], row["file"])
            elif row["file"] not in tier_files and row["file"] not in far_files:
                yield row
    for name, file in tier_files.items():
        yield from dump_tier(file, name, slot_count=slots)
    for name, path in far_files.items():
        yield from dump_tiered_timer_file(path, name)
