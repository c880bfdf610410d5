"""Shared by the commands of `tiermq tier`: options, exit codes, opening a tier and a broker's tier metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from tiermq.cli.conventions import EXIT_NO_TIER, EXIT_PROBLEMS
from tiermq.cli.option_values import StoreDirectory, topic_option
from tiermq.console.json_case import camel
from tiermq.errors import StoreError, TierError, TierMQError
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.database import discard
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.tier_config import TierConfig
from tiermq.tier.tier_identity import open_known_metadata, open_new_metadata

URL = click.argument("url", metavar="URL")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
CLUSTER = click.option("--cluster", help="Only this cluster (brokerClusterName).")
BROKER = click.option("--broker", help="Only this broker (brokerName).")
TOPIC = topic_option(help="Only this topic.")
STORE = click.option(
    "--store",
    type=StoreDirectory(),
    help="A broker's store directory, with its tier metadata in config/.",
)


@contextmanager
def opened(url: str) -> Iterator[TierDriver]:
    """Open the tier; exit code 2 if it cannot be read."""
    try:
        driver = open_driver(url)
        try:
            yield driver
        finally:
            driver.close()
    except (TierError, StoreError) as error:
        fail(error)


def fail(error: TierMQError) -> NoReturn:
    click.echo(f"Error: {error}", err=True)
    raise SystemExit(EXIT_NO_TIER) from error


def no_history(url: str, *names: str | None) -> NoReturn:
    """Report that there is no tier, or no such cluster, broker or topic. Exit code 1."""
    click.echo(f"Error: {no_history_words(url, *names)}", err=True)
    raise SystemExit(EXIT_PROBLEMS)


def no_history_words(url: str, *names: str | None) -> str:
    wanted = "/".join(name or "*" for name in names)
    expected = f"history of {wanted}" if any(names) else "a tier"
    return (
        f"{url}: expected {expected}, found no message history there; check the address, or copy a store into "
        f"it: `tiermq pipeline offload --store DIR=cluster/broker --tier {url}`"
    )


def metadata_path(store: Path) -> Path:
    return TierConfig(store_path_root_dir=str(store)).metadata_path


@contextmanager
def broker_metadata(store: Path | None) -> Iterator[MetadataStore | None]:
    """A broker's tier metadata, which must exist."""
    if store is None:
        yield None
        return
    path = metadata_path(store)
    if not path.is_file():
        raise StoreError(f"{path}: expected a broker's tier metadata, found no such file; `restore` creates it")
    with open_known_metadata(store) as metadata:
        yield metadata


@contextmanager
def new_metadata(store: Path) -> Iterator[MetadataStore]:
    """New tier metadata for a broker. A failure while filling it removes what was created."""
    path = metadata_path(store)
    was_there = path.exists()
    made = [directory for directory in (path.parent, store) if not directory.exists()]
    try:
        with open_new_metadata(store) as metadata:
            yield metadata
    except BaseException:
        if not was_there:
            discard(path)
            for directory in made:
                with suppress(OSError):  # Another process has put files there.
                    directory.rmdir()
        raise


def print_json(values: dict[str, Any]) -> None:
    """One object on a line, in the case that results of every command have."""
    click.echo(json.dumps(camel(values)))
