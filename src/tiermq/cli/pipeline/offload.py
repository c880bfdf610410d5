"""`tiermq pipeline offload`."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiermq.cli.cluster_command import cluster_options
from tiermq.cli.conventions import EXIT_HISTORY_LOST, EXIT_IN_DANGER, EXIT_PROBLEMS
from tiermq.cli.option_values import parse_bytes, topic_option
from tiermq.cli.pipeline.options import NO_WAIT, TIER, job_options, runner_for, show_report, stopped_by_signals
from tiermq.cli.terminal import bar
from tiermq.client.cluster_client import Access
from tiermq.errors import BadConfig
from tiermq.pipeline.job_report import counted_noun

if TYPE_CHECKING:
    from tiermq.pipeline.job_report import JobReport
    from tiermq.pipeline.offload.wire_fleet import FleetScope

TLS_OPTIONS = ("tls", "tls_cert", "tls_key", "tls_ca")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


HELP = """Copy brokers to a tier, byte for byte as they would do it themselves.

Two sources. --namesrv: running brokers, TierMQ's or unmodified RocketMQ's (tried: 4.9, 5.3, 5.5), over the wire; tasks
on any machine that reaches brokers and tier. --store: store directories, on machines that see them.

\b
Over the wire
  what      all topics of all brokers of the name servers; --cluster,
            --broker, --topic, --exclude choose. Topics of the system are
            never copied; retry, dlq and transactions topics with --include.
  when      only what a broker cannot lose any more: TierMQ brokers report
            what is flushed; of RocketMQ with ASYNC_FLUSH it is what has
            been there for longer than its flush may take (15 s with its
            default settings), so that a run takes at least that long.
  who       reads with group TOOLS_CONSUMER and commits no offsets. With
            accounts: ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY, here and
            on executors, with SUB on the topics and on that group. Checked
            first.
  producers --rate protects them: bytes a second of each broker, over all
            tasks.
  a broker that is down delays only its own queues, and is tried again by
            each wave of --trigger. One that has history in the tier and
            that no name server knows counts as down, unless
            --exclude-broker names it.

The last copied message of each queue is compared with the broker's: a queue with another history is refused. What
a broker deleted before it was copied is recorded as a gap. An administrator's account copies topics, groups and
offsets, too, for `tiermq tier restore`.

\b
Store directories
  They may be in use: set tierDispatchEnable=false, so that brokers leave
  uploads to this job and follow it. An idle store must have been closed
  cleanly; --recover opens a store after a crash. Give the broker's names as
  DIR=cluster/broker, or by its --config, the first time. Other names are
  rejected then.

The tier is the checkpoint: after a stop or kill the next run continues where this one ended, and nothing is copied
twice. With --trigger it ends at the first SIGINT or SIGTERM, after the current wave. Waves that fail are tried again,
at intervals of up to five minutes. Lines on stderr: the start, waves that copied something, problems that come and go.

A lease that a killed job left behind is taken over at once if that job ran on this machine. One of another machine is
waited for, at most a minute (--no-wait: not).

\b
Exit code:
  0  everything is copied
  1  something could not be copied, or a broker was out of reach or in use:
     the next run tries again
  3  --namesrv: history is missing (a broker deleted messages before they
     were copied) or a queue is refused
  4  --namesrv: all is copied, but messages were close to their broker's
     retention: run it more often

\b
Examples:
  tiermq pipeline offload --namesrv 'ns1:9876;ns2:9876' --cluster prod \\
      --tier s3://history --dry-run
  tiermq pipeline offload --namesrv ns1:9876 --tier s3://history \\
      --master spark://host:7077 --trigger 20s --rate 50M
  tiermq pipeline offload --namesrv ns1:9876 --tier s3://history \\
      --exclude 'audit-*' --include retry,dlq
  tiermq pipeline offload --store ~/store=DefaultCluster/broker-a \\
      --tier s3://history --dry-run
  tiermq pipeline offload --store /data/a=prod/broker-a \\
      --store /data/b=prod/broker-b --tier s3://history
  tiermq pipeline offload --store ~/store --tier file:///mnt/tier --json \\
      | jq .done.messages
"""


@click.command(help=HELP)
@click.option(
    "--store",
    "stores",
    multiple=True,
    metavar="DIR[=cluster/broker]",
    help="Store directory and its broker; repeatable. Or --namesrv.",
)
@TIER
@click.option("--cluster", help="With --namesrv: only this cluster (brokerClusterName).")
@click.option("--broker", "brokers", multiple=True, help="With --namesrv: only this broker (brokerName); repeatable.")
@click.option(
    "--exclude-broker",
    "exclude_brokers",
    multiple=True,
    metavar="PATTERN",
    help="With --namesrv: not these brokers, also those that are gone for good; repeatable.",
)
@topic_option("topics", multiple=True, help="Only this topic; repeatable.")
@click.option(
    "--exclude", multiple=True, metavar="PATTERN", help="With --namesrv: not these topics ('audit-*'); repeatable."
)
@click.option(
    "--include",
    multiple=True,
    metavar="KIND",
    help="Also retry, dlq or transactions topics; repeatable, or separated by commas. With --store: transactions.",
)
@click.option("--rate", metavar="SIZE", help="With --namesrv: at most so many bytes a second of each broker (50M).")
@click.option(
    "--settle",
    metavar="TIME",
    help="With --namesrv: copy messages of a RocketMQ broker with ASYNC_FLUSH when they have been there so long. "
    "Default: longer than its own flush may take, by its settings (15s with RocketMQ's defaults).",
)
@click.option(
    "--accept-gaps",
    is_flag=True,
    help="With --namesrv: record gaps of more than a million messages, too.",
)
@click.option("--trigger", metavar="TIME", help="Repeat at this interval (20s, 5m), until stopped.")
@click.option("--once", is_flag=True, help="Copy once and exit (default).")
@click.option(
    "--index",
    type=click.Choice(["now", "small", "later"]),
    help="Index keys in files that RocketMQ reads, too (now, default of --store), in small files while keys are few "
    "(small, default of --namesrv), or leave it to reindex.",
)
@click.option(
    "--no-bundles",
    is_flag=True,
    help="Give each queue objects of its own. By default quiet queues of a broker share objects in an object store.",
)
@click.option("--recover", is_flag=True, help="Run crash recovery on the store first.")
@click.option(
    "--forget-tier",
    is_flag=True,
    help="Discard stale tier metadata and upload again.",
)
@click.option("--config", type=click.Path(exists=True, dir_okay=False), help="The broker's settings: .conf or TOML.")
@click.option("--metrics", metavar="FILE", help="Write metrics after each wave, in Prometheus' text format.")
@NO_WAIT
@partial(cluster_options, default="")
@job_options
def offload(
    access: Access,
    stores: tuple[str, ...],
    tier: str,
    topics: tuple[str, ...],
    rate: str | None,
    trigger: str | None,
    once: bool,
    index: str,
    no_bundles: bool,
    recover: bool,
    forget_tier: bool,
    config: str | None,
    metrics: str | None,
    no_wait: bool,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    **choice: Any,
) -> None:
    from tiermq.pipeline.offload import offload as run
    from tiermq.pipeline.offload.plan import OffloadSettings

    if once and trigger:
        raise BadConfig("--once and --trigger exclude each other")
    fleet = fleet_of(access, stores, topics, **choice)
    if fleet is not None and (recover or forget_tier):
        raise BadConfig("--recover and --forget-tier are for store directories: they need --store")
    stop = threading.Event()
    text = "copying" if not dry_run else "looking"
    with (
        runner_for(master, conf, needed=not dry_run) as runner,
        bar(text, in_bytes=True, quiet=as_json or trigger is not None) as progress,
        stopped_by_signals(stop, "wave"),
    ):
        report = run(
            () if fleet is not None else named_stores(stores, config),
            tier,
            runner=runner,
            topics=topics,
            fleet=fleet,
            rate=0 if rate is None else parse_bytes("--rate", rate),
            metrics_path=metrics,
            index=index or ("now" if fleet is None else "small"),
            trigger_s=None if trigger is None else seconds_of(trigger),
            settings=OffloadSettings(packs=not no_bundles),
            recover=recover,
            forget_tier=forget_tier,
            dry_run=dry_run,
            wait_for_leases=not no_wait,
            config=settings_of_file(config) | transactions_of(choice["include"]),
            progress=progress,
            say=partial(click.echo, err=True),
            stop=stop,
        )
    show_report(report, as_json=as_json, details=_rows)
    raise SystemExit(exit_code(report, by_wire=fleet is not None))


def fleet_of(
    access: Access,
    stores: tuple[str, ...],
    topics: tuple[str, ...],
    *,
    cluster: str | None,
    brokers: tuple[str, ...],
    exclude_brokers: tuple[str, ...],
    exclude: tuple[str, ...],
    include: tuple[str, ...],
    settle: str | None,
    accept_gaps: bool,
) -> FleetScope | None:
    """The brokers to copy over the wire; None for store directories. Raises BadConfig."""
    from tiermq.pipeline.offload.wire_fleet import FleetScope

    kinds = kinds_of(include)
    if not is_by_wire(stores, access.name_servers):
        given = click.get_current_context().get_parameter_source
        for name in ("cluster", "brokers", "exclude_brokers", "exclude", "rate", "settle", "accept_gaps", *TLS_OPTIONS):
            if given(name) is click.core.ParameterSource.COMMANDLINE:
                option = f"--{name.removesuffix('s') if name.endswith('brokers') else name}".replace("_", "-")
                raise BadConfig(f"{option} is for brokers over the wire: it needs --namesrv")
        if kinds - {"transactions"}:
            raise BadConfig(
                f"--include {', '.join(sorted(kinds - {'transactions'}))} is for brokers over the wire: of a store "
                "directory retry and dead-letter topics are always copied"
            )
        return None
    return FleetScope(
        access.name_servers,
        cluster,
        brokers=frozenset(brokers),
        topics=frozenset(topics),
        exclude=exclude,
        exclude_brokers=exclude_brokers,
        include=kinds,
        tls=access.tls,
        certificates=access.certificates,
        settle_s=None if settle is None else 0.0 if settle == "0" else seconds_of(settle, "--settle"),
        accept_gaps=accept_gaps,
    )


def kinds_of(include: tuple[str, ...]) -> frozenset[str]:
    """The values of --include."""
    return frozenset(filter(None, (kind.strip() for each in include for kind in each.split(","))))


def transactions_of(include: tuple[str, ...]) -> dict[str, Any]:
    """`--include transactions` as the setting `tierTransactionsEnable`: one switch, for both sources."""
    return {"tier_transactions_enable": True} if "transactions" in kinds_of(include) else {}


def is_by_wire(stores: tuple[str, ...], name_servers: str) -> bool:
    """Whether brokers are copied over the wire. Raises BadConfig unless there is one source."""
    source = click.get_current_context().get_parameter_source("namesrv")
    if stores and name_servers and source is click.core.ParameterSource.COMMANDLINE:
        raise BadConfig("--store reads directories and --namesrv asks brokers; give one of the two")
    if not stores and not name_servers:
        raise BadConfig("say what to copy: --namesrv host:port (running brokers), or --store DIR (store directories)")
    return not stores


def exit_code(report: JobReport, *, by_wire: bool) -> int:
    """See the command's help."""
    details = report.details
    if by_wire and (details.get("gaps") or details.get("refused")):
        return EXIT_HISTORY_LOST
    if not report.is_clean:
        return EXIT_PROBLEMS
    return EXIT_IN_DANGER if by_wire and details.get("danger") else 0


def seconds_of(text: str, option: str = "--trigger") -> float:
    """Parse a time such as 20s, 500ms or 5m into seconds. Raises BadConfig."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h)", text.strip())
    if found is None or float(found[1]) == 0:
        raise BadConfig(f"{option} is a time such as 20s, 500ms or 5m, found {text!r}")
    return float(found[1]) * _UNITS_S[found[2]]


def named_stores(stores: tuple[str, ...], path: str | None) -> tuple[str, ...]:
    """The stores; a single store without broker names gets them from the broker's file. Raises BadConfig."""
    if path is None or len(stores) > 1 or "=" in stores[0]:
        return stores
    from tiermq.broker.settings_file import read_settings_file
    from tiermq.tier.tier_config import TierConfig

    said = read_settings_file(Path(path)).tier
    if not said.get("broker_name"):
        return stores
    cluster = said.get("broker_cluster_name") or TierConfig().broker_cluster_name
    return (f"{stores[0]}={cluster}/{said['broker_name']}",)


def settings_of_file(path: str | None) -> dict[str, Any]:
    """The tier settings of a file, in snake_case, without those that this command's options set."""
    if path is None:
        return {}
    from tiermq.tier.tier_config import TierConfig

    given, _ = TierConfig.from_file(Path(path))
    usual = TierConfig()
    own = {"broker_name", "broker_cluster_name", "store_path_root_dir", "tier_url", "tiered_store_file_path"}
    names = [name for name in TierConfig.__dataclass_fields__ if name not in own]
    return {name: getattr(given, name) for name in names if getattr(given, name) != getattr(usual, name)}


def _rows(report: JobReport) -> Iterator[str]:
    for row in report.details.get("gaps", ()):
        kept = "" if row["keeps_s"] is None else f"; the broker keeps messages for {row['keeps_s'] // 3600} h"
        kept += "" if row["left_s"] is None else f", and the next one for another {_span(row['left_s'])}"
        yield f"gap: {_queue(row)}: messages {row['from']} to {row['to'] - 1}: {row['reason']}{kept}"
    for row in report.details.get("refused", ()):
        both = f"in the tier {row['tier']}, at the broker {row['source']}"
        yield f"refused: {_queue(row)} from message {row['offset']} on: {both}"
    for row in report.details.get("danger", ()):
        left = f"the oldest had {_span(row['left_s'])} left"
        yield f"danger: {_queue(row)}: {counted_noun(row['behind'], 'message')} not copied, {left}"
    for row in report.details.get("queues", ()):
        name = f"{row['store']} {row['topic']}-{row['queue']}"
        yield f"{name}: {counted_noun(row['messages'], 'message')}, about {row['bytes']:,} bytes"
    for row in report.details.get("stores", ()):
        name = f"{row['path']} as {row['cluster']}/{row['broker']}"
        copied = f"copied {counted_noun(row['messages'], 'message')} of {counted_noun(row['queues'], 'queue')}"
        yield f"{name}: {copied if row['messages'] else 'nothing new'}"


def _span(seconds: int) -> str:
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def _queue(row: dict[str, Any]) -> str:
    return f"{row['broker']} {row['topic']}-{row['queue']}"
