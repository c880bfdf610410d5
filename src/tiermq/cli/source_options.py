"""Options of commands that run an operation of the catalogue: --namesrv, --tier and --store.

@click.command()
@source_options
def command(visit: Visit, ...) -> None:
    found = run("topic.list", visit, {...})
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tiermq.cli.cluster_command import DEFAULT_NAME_SERVER, cluster_options
from tiermq.cli.option_values import NamedStore
from tiermq.client.cluster_client import Access
from tiermq.console.catalogue import Result, run
from tiermq.console.sources import SourcePlace, Sources, Visit
from tiermq.embedded.locations import tier_url
from tiermq.errors import TierError
from tiermq.history.scan_values import StorePlace

F = TypeVar("F", bound=Callable[..., Any])
ROWS = 1_000


def source_options(command: F) -> F:
    """Add the options to a command, which receives them as `visit`. Without any, the default name server is asked."""

    @functools.wraps(command)
    def with_visit(
        *arguments: Any, access: Access, tier: str | None, stores: tuple[StorePlace, ...], **others: Any
    ) -> Any:
        if not access.name_servers and tier is None and not stores:
            access = Access(DEFAULT_NAME_SERVER, access.access_key, access.secret_key, access.tls, access.certificates)
        place = SourcePlace(access if access.name_servers else None, tier_place(tier), stores)
        sources = Sources(place)
        try:
            require_history(sources)
            # The command runs as its user, who may do what the account and the file system allow.
            return command(*arguments, visit=Visit(sources, may_change=True), **others)
        finally:
            sources.close()

    made: Any = functools.partial(cluster_options, default="")(with_visit)
    made = click.option(
        "--store",
        "stores",
        multiple=True,
        type=NamedStore(),
        metavar="DIR[=NAME]",
        help="Read this store directory, of the broker NAME; repeatable.",
    )(made)
    decorated: F = click.option("--tier", metavar="URL", help="Read this tier, or directory; no broker needed.")(made)
    return decorated


def tier_place(tier: str | None) -> str | None:
    """The URL of --tier, which may be a directory."""
    return None if tier is None else tier_url(tier)


def require_history(sources: Sources, *, beside_brokers: bool = True) -> None:
    """Check that the tier has history, as `tiermq tier stat` does: an empty one is a mistyped URL. Beside brokers it
    may be empty, since they may not have uploaded yet; not for a command that does not ask them then. Raises TierError.
    """
    if sources.place.tier is None or (beside_brokers and sources.has_wire):
        return
    # Imported here: lists of brokers do without.
    from tiermq.cli.tier.options import no_history_words
    from tiermq.delivery.tiered_timers.timer_discovery import discover_timers
    from tiermq.tier.queue.segments import TierScope, list_tier

    with sources.files() as history:
        driver = history.tier
        if next(iter(driver.list_segments()), None) is not None:
            return
        if not list_tier(driver, TierScope()).brokers and not discover_timers(driver, TierScope()):
            raise TierError(no_history_words(driver.url))


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
