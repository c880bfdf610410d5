"""`tiermq pipeline offload`."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiermq.cli.pipeline_options import TIER, bar, finish, job_options, spark_for
from tiermq.cli.pipeline_source_options import stopped_by_signals
from tiermq.errors import BadConfig

if TYPE_CHECKING:
    from tiermq.spark.jobs.job_report import JobReport

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@click.command()
@click.option(
    "--store",
    "stores",
    multiple=True,
    required=True,
    metavar="DIR[=cluster/broker]",
    help="A store directory and whose it is; may be repeated.",
)
@TIER
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@click.option("--trigger", metavar="TIME", help="Look again every so often (20s, 5m), until stopped.")
@click.option("--once", is_flag=True, help="Copy what is there now, then end. The default.")
@click.option(
    "--index",
    type=click.Choice(["now", "local", "later"]),
    default="now",
    show_default=True,
    help="The key index: into the tier at the end, into it when a file is full, or left to reindex.",
)
@click.option("--recover", is_flag=True, help="Open a store whose process died, once, so that it can be believed.")
@click.option(
    "--forget-tier",
    is_flag=True,
    help="Where the tier has nothing of what a store says is there: copy what the store still has anew.",
)
@click.option("--config", type=click.Path(exists=True, dir_okay=False), help="The broker's settings: .conf or TOML.")
@job_options
def offload(
    stores: tuple[str, ...],
    tier: str,
    topics: tuple[str, ...],
    trigger: str | None,
    once: bool,
    index: str,
    recover: bool,
    forget_tier: bool,
    config: str | None,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Copy store directories into a tier, byte for byte as their own dispatcher would.

    The stores may be in use: give them tierDispatchEnable=false, so that they leave the copying to this job and follow
    it. Local files then go as ever, once the tier has proof of them. A store that is not in use must have been closed
    in order; --recover opens one whose process died.

    A directory does not know its broker's names: give them as DIR=cluster/broker the first time. The tier is the
    checkpoint: stopped or killed at any moment, the next run goes on where this one ended. Nothing is copied twice.

    With --trigger it ends at the first SIGINT or SIGTERM, after the wave that is under way.

    Exit code: 0, or 1 if something could not be copied.

    \b
    Examples:
      tiermq pipeline offload --store ~/store --tier s3://history --dry-run
      tiermq pipeline offload --store /data/a=prod/broker-a --store /data/b=prod/broker-b --tier s3://history
      tiermq pipeline offload --store ~/store --tier s3://history --trigger 20s --master 'local[4]'
      tiermq pipeline offload --store ~/store --tier file:///mnt/tier --json | jq .done.messages
    """
    from tiermq.spark.jobs.offload import offload as run

    if once and trigger:
        raise BadConfig("--once ends by itself and --trigger does not; give one of the two")
    stop = threading.Event()
    text = "copying" if not dry_run else "looking"
    with (
        spark_for(master, conf, needed=not dry_run) as spark,
        bar(text, in_bytes=True, quiet=as_json) as progress,
        stopped_by_signals(stop, "wave"),
    ):
        report = run(
            stores,
            tier,
            spark=spark,
            topics=topics,
            index=index,
            trigger_s=None if trigger is None else seconds_of(trigger),
            recover=recover,
            forget_tier=forget_tier,
            dry_run=dry_run,
            config=settings_of_file(config),
            progress=progress,
            stop=stop,
        )
    finish(report, as_json=as_json, details=_rows)


def seconds_of(text: str) -> float:
    """A time such as 20s, 500ms or 5m, in seconds. Raises BadConfig."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h)", text.strip())
    if found is None or float(found[1]) == 0:
        raise BadConfig(f"--trigger is a time such as 20s, 500ms or 5m, found {text!r}")
    return float(found[1]) * _UNITS_S[found[2]]


def settings_of_file(path: str | None) -> dict[str, Any]:
    """The tier's settings that a file gives, by their names in snake_case; those of the place are this command's."""
    if path is None:
        return {}
    from tiermq.tier.tier_config import TierConfig

    text = Path(path).read_text(encoding="utf-8")
    given = TierConfig.from_toml(text) if path.endswith(".toml") else TierConfig.from_properties(text)[0]
    usual = TierConfig()
    own = {"broker_name", "broker_cluster_name", "store_path_root_dir", "tier_url", "tiered_store_file_path"}
    names = [name for name in TierConfig.__dataclass_fields__ if name not in own]
    return {name: getattr(given, name) for name in names if getattr(given, name) != getattr(usual, name)}


def _rows(report: JobReport) -> Iterator[str]:
    for row in report.details.get("queues", ()):
        name = f"{row['store']} {row['topic']}-{row['queue']}"
        yield f"{name}: {row['messages']:,} messages, about {row['bytes']:,} bytes"
    for row in report.details.get("stores", ()):
        name = f"{row['path']} as {row['cluster']}/{row['broker']}"
        yield f"{name}: {row['messages']:,} messages of {row['queues']} queues"
