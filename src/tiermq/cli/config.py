"""`tiermq config`: show and change settings of running brokers, and check a file before a broker starts with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.settings_file import read_settings_file
from tiermq.cli.cluster_command import cluster_options
from tiermq.cli.conventions import EXIT_PROBLEMS, SuggestingGroup
from tiermq.cli.source_options import as_visitor
from tiermq.client.cluster_client import Access
from tiermq.config import StoreConfig
from tiermq.errors import BadConfig
from tiermq.pipeline.job_report import counted_noun
from tiermq.settings import settings_of
from tiermq.tier.tier_config import TierConfig

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_BROKER = click.option("--broker", help="Only this broker [all].")


@click.group(cls=SuggestingGroup)
def config() -> None:
    """Show, check and change settings of brokers.

    \b
    Examples:
      tiermq config show --search retention
      tiermq config check /etc/rocketmq/broker.conf
      tiermq config set fileReservedTime 48
    """


@config.command()
@cluster_options
@_BROKER
@click.option("--search", help="Only settings whose name contains this text.")
@_JSON
def show(access: Access, broker: str | None, search: str | None, as_json: bool) -> None:
    """Show the settings that brokers run with."""
    found = as_visitor(access, "settings.show", broker=broker, search=search)
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, settings in found["brokers"].items():
        click.echo(f"# {name}")
        for key, value in settings.items():
            click.echo(f"{key}={value}")


@config.command("set")
@click.argument("name")
@click.argument("value")
@cluster_options
@_BROKER
@_JSON
def change(access: Access, name: str, value: str, broker: str | None, as_json: bool) -> None:
    """Set NAME to VALUE at running brokers.

    Only settings that can be changed while a broker runs; the file that it was started with is changed, too.
    """
    found = as_visitor(access, "settings.change", name=name, value=value, broker=broker)
    if as_json:
        click.echo(json.dumps(found))
        return
    for each, remark in found["brokers"].items():
        click.echo(f"{each}: {name}={value}{f' ({remark})' if remark else ''}")


@config.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_JSON
def check(file: Path, as_json: bool) -> None:
    """Check the settings in FILE, as `tiermq serve --config` would read it.

    Exit code: 0 if a broker would start with it, 1 if not, or if it has unknown settings.
    """
    try:
        found = read_settings_file(file)
    except BadConfig as error:
        raise click.ClickException(str(error)) from error
    weaker = [text for text in found.unkept() if text not in found.misspelled]
    values: dict[str, Any] = {
        "file": str(file),
        "settings": {
            settings_of(kind)[name].property_name: value
            for kind, given in ((BrokerConfig, found.broker), (StoreConfig, found.store), (TierConfig, found.tier))
            for name, value in given.items()
        },
        "ignored": list(found.ignored),
        "unknown": list(found.unknown),
        "misspelled": list(found.misspelled),
        "needOptions": weaker,
    }
    if as_json:
        click.echo(json.dumps(values, default=str))
    else:
        click.echo(f"{file}: {counted_noun(len(values['settings']), 'setting')}")
        for words, names in (("without effect here", found.ignored), ("unknown", found.unknown)):
            if names:
                click.echo(f"{words}: {', '.join(names)}")
        for text in found.misspelled:
            click.echo(f"misspelled, refused without --accept-weaker: {text}")
        for text in weaker:
            click.echo(f"needs an option of serve, or --accept-weaker: {text}")
    if found.unknown or found.misspelled or weaker:
        raise SystemExit(EXIT_PROBLEMS)
