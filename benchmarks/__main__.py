"""`python3 dev.py bench NAME`, or `python -m benchmarks NAME`: run a benchmark."""

from __future__ import annotations

import importlib

import click

NAMES = (
    "put",
    "get",
    "dispatch",
    "recover",
    "index",
    "tier",
    "coldread",
    "tierindex",
    "columns",
    "verify",
    "spark",
    "sql",
    "offload",
    "wire",
    "broker",
    "brokers",
    "client",
    "grpc",
    "delivery",
    "topics",
    "replication",
    "latency",
    "compare",
)


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def bench(ctx: click.Context, name: str | None, as_json: bool, arguments: tuple[str, ...]) -> None:
    """Run the benchmark NAME: put, get, dispatch, recover, index, tier, coldread, tierindex, columns, verify, spark,
    sql, offload, wire, broker, brokers, client, grpc, delivery, topics, replication, latency or compare.

    Results are ratios first: against Java reference loops and against what the machine can do at all, measured in the
    same run. `compare` runs everything beside the real RocketMQ and writes a report with pictures. More arguments go to
    the benchmark; `python3 dev.py bench put --help` lists them.

    \b
    Examples:
      python3 dev.py bench put --quick
      python3 dev.py bench get --json
      python3 dev.py bench compare --list
    """
    if name is None or name in ("-h", "--help"):
        click.echo(ctx.get_help())
        return
    if name not in NAMES:
        raise click.UsageError(f"there is no benchmark {name!r}; there are {', '.join(NAMES)}", ctx)
    benchmark = importlib.import_module(f"benchmarks.bench_{name}")
    shown_by = benchmark if hasattr(benchmark, "print_result") else importlib.import_module("benchmarks.report")
    shown_by.print_result(benchmark.run(list(arguments)), as_json)


if __name__ == "__main__":
    bench(prog_name="dev.py bench")
