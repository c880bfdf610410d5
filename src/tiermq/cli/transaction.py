"""`tiermq transaction`: list open transactions, and show how others ended."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tiermq.cli.conventions import EXIT_NO_STORE, EXIT_NOTHING, SuggestingGroup
from tiermq.cli.option_values import StoreDirectory, topic_option
from tiermq.cli.tier.output import moment
from tiermq.console.json_case import camel
from tiermq.delivery.transactions.open_halves import open_halves
from tiermq.errors import StoreError, TierMQError
from tiermq.history.scan_values import HistoryPlace, StorePlace

if TYPE_CHECKING:
    from tiermq.delivery.transactions.transaction_fate import TransactionFate


@click.group(cls=SuggestingGroup)
def transaction() -> None:
    """List open transactions, and show how others ended.

    A transaction is identified by the unique key of its half message, which RocketMQ's
    clients call transaction id.

    \b
    Examples:
      tiermq transaction ls ~/store
      tiermq transaction show 7F0000010AB018B4AAC2058DA3140000 --store ~/store
      tiermq transaction show 7F0000010AB018B4AAC2058DA3140000 --tier s3://history
    """


@transaction.command("ls")
@click.argument("directory", type=StoreDirectory(exists=True))
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=StoreDirectory(exists=True),
    help="Commit log directory outside of DIRECTORY (storePathCommitLog); repeatable.",
)
@topic_option(help="Only transactions of this topic.")
@click.option("--group", help="Only transactions of this producer group.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each transaction.")
def list_open(directory: Path, logs: tuple[Path, ...], topic: str | None, group: str | None, as_json: bool) -> None:
    """List open half messages in the store DIRECTORY, oldest first.

    DIRECTORY is a store of TierMQ or RocketMQ, and may be in use.

    Exit code: 0, or 2 if DIRECTORY is no store.

    \b
    Examples:
      tiermq transaction ls ~/store
      tiermq transaction ls ~/store --group payments --json \\
          | jq -r .transactionId
    """
    count = 0
    try:
        for half in open_halves(directory, logs):
            if topic not in (None, half.topic) or group not in (None, half.producer_group):
                continue
            count += 1
            asked = f"asked {half.questions} times" if half.questions else "not asked about yet"
            line = f"{moment(half.born_ms)}  {half.topic}:{half.queue_id}  {half.transaction_id}  {half.producer_group}"
            click.echo(json.dumps(camel(half.to_dict())) if as_json else f"{line}  {asked}")
    except StoreError as error:
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(EXIT_NO_STORE) from error
    if not count and not as_json:
        click.echo("no transaction is open", err=True)


@transaction.command()
@click.argument("transaction_id")
@click.option("--tier", metavar="URL", help="Read this tier: file:///dir, s3://bucket/prefix, …")
@click.option(
    "--store",
    "directory",
    type=StoreDirectory(exists=True),
    help="Read this store directory. With --tier: hot and cold as one.",
)
@click.option("--broker", default="", help="The broker's name in the tier that --store belongs to, if it has several.")
@click.option("--cluster", default="", help="Only this cluster, if the tier has several.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(
    transaction_id: str, tier: str | None, directory: Path | None, broker: str, cluster: str, as_json: bool
) -> None:
    """Show how the transaction TRANSACTION_ID ended.

    Results: committed, rolled back, given up, open. A store directory has it as long as it keeps its files; a tier as
    long as it keeps its history, if tierTransactionsEnable is set. "ended" means that RocketMQ has ended it,
    which does not record how, and that its message is not in its topic.

    Exit code: 0, 1 when no such transaction is found, 2 when store or tier cannot be read.

    \b
    Examples:
      tiermq transaction show 7F0000010AB018B4AAC2058DA3140000 --store ~/store
      tiermq transaction show 7F0000010AB018B4AAC2058DA3140000 \\
          --tier s3://history --json | jq -r .fate
    """
    # They need the extra `sql`, unlike the list.
    from tiermq.delivery.transactions.transaction_fate import transaction_fate
    from tiermq.history.open_history import open_history

    if tier is None and directory is None:
        raise click.UsageError("expected --tier URL, --store DIR, or both, found neither")
    stores = () if directory is None else (StorePlace(str(directory), cluster, broker),)
    try:
        with open_history(HistoryPlace(tier, stores, cluster)) as history:
            found = transaction_fate(history, transaction_id)
    except TierMQError as error:
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(EXIT_NO_STORE) from error
    if found is None:
        click.echo(f"tiermq transaction: nothing is known there of a transaction {transaction_id}", err=True)
        sys.exit(EXIT_NOTHING)
    if as_json:
        click.echo(json.dumps(camel(found.to_dict())))
    else:
        _show(found)


def _show(found: TransactionFate) -> None:
    rows = {
        "transaction": found.transaction_id,
        "fate": found.fate.value,
        "topic": f"{found.topic}:{found.queue_id}",
        "producer group": found.producer_group,
        "broker": found.broker,
        "born": moment(found.born_ms),
        "prepared": moment(found.prepared_ms),
        "ended": moment(found.ended_ms) or "no",
        "asked about": f"{found.questions} times",
    }
    for name, value in rows.items():
        click.echo(f"{name:16} {value}")
