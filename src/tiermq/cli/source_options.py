"""Options of commands that run an operation of the catalogue: --namesrv, --tier and --store; and tables of 80 columns.

@click.command()
@source_options
def command(visit: Visit, ...) -> None:
    found = run("topic.list", visit, {...})
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from tiermq.cli.cluster_command import DEFAULT_NAME_SERVER, cluster_options
from tiermq.client.cluster_client import Access
from tiermq.console.catalogue import Result, run
from tiermq.console.sources import SourcePlace, Sources, Visit
from tiermq.history.scan_values import StorePlace

F = TypeVar("F", bound=Callable[..., Any])
WIDTH = 80
ROWS = 1_000
TEXT_MIN = 8
"""The width of a folded text at the least."""


def source_options(command: F) -> F:
    """Add the options to a command, which receives them as `visit`. Without any, the default name server is asked."""

    @functools.wraps(command)
    def with_visit(*arguments: Any, access: Access, tier: str | None, stores: tuple[Path, ...], **others: Any) -> Any:
        if not access.name_servers and tier is None and not stores:
            access = Access(DEFAULT_NAME_SERVER, access.access_key, access.secret_key, access.tls, access.certificates)
        place = SourcePlace(
            access if access.name_servers else None, tier, tuple(StorePlace(str(each)) for each in stores)
        )
        sources = Sources(place)
        try:
            # The command runs as its user, who may do what the account and the file system allow.
            return command(*arguments, visit=Visit(sources, may_change=True), **others)
        finally:
            sources.close()

    made: Any = functools.partial(cluster_options, default="")(with_visit)
    made = click.option(
        "--store",
        "stores",
        multiple=True,
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Read this store directory; repeatable.",
    )(made)
    decorated: F = click.option("--tier", metavar="URL", help="Read this tier; no broker needed.")(made)
    return decorated


def as_visitor(access: Access, name: str, /, **values: object) -> Result:
    """The result of an operation at the brokers, as the command's user."""
    sources = Sources(SourcePlace(access))
    try:
        return run(name, Visit(sources, may_change=True), given(values))
    finally:
        sources.close()


def every_page(name: str, visit: Visit, member: str, /, **values: object) -> Result:
    """A list with the rows of all of its pages."""
    rows: list[Any] = []
    page, pages = 0, 1
    while page < pages:
        page += 1
        found = run(name, visit, {**given(values), "page": page, "rows": ROWS})
        rows += found[member]
        pages = found["pages"]
    return {member: rows, "total": found["total"]}


def given(values: dict[str, object]) -> dict[str, object]:
    """Without what was left out; booleans as the catalogue reads them."""
    return {
        name: str(each).lower() if isinstance(each, bool) else each for name, each in values.items() if each is not None
    }


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1) -> None:
    """A table that fits a terminal: the first `texts` columns fold, figures are never cut."""
    widest = _widest(columns, rows)
    width = max(WIDTH, sum(widest) + 2 * len(columns))
    if sys.stdout.isatty():  # Texts fold there; a terminal that is narrower than the figures breaks lines itself.
        width = max(Console().width, sum(widest[texts:]) + 2 * len(columns) + TEXT_MIN * texts)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for index, name in enumerate(columns):
        if index < texts:
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=width, highlight=False, markup=False).print(table)


def _widest(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max([len(name), *(len(row[index]) for row in rows)]) for index, name in enumerate(columns)]
