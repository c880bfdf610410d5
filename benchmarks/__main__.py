"""`tiermq bench`: the benchmarks of the checkout."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

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
    "wire",
    "broker",
    "delivery",
    "topics",
    "compare",
)


def checkout_root() -> Path:
    """The checkout that this package was installed from, editable. Raises ClickException if there is none."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "benchmarks" / "bench_put.py").is_file():
        raise click.ClickException(
            f"the benchmarks are part of the checkout, not of the installed package (looked in {root}); "
            "clone the repository and run: python3 dev.py bench put"
        )
    return root


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def bench(ctx: click.Context, name: str | None, as_json: bool, arguments: tuple[str, ...]) -> None:
    """Run the benchmark NAME: put, get, dispatch, recover, index, tier, coldread, tierindex, columns, verify, spark,
    wire, broker, delivery or compare.

    Results are ratios first: against Java reference loops and against what the machine can do at all, measured in the
    same run. `compare` runs everything beside the real RocketMQ and writes a report with pictures. More arguments go to
    the benchmark; `tiermq bench put --help` lists them.

    \b
    Examples:
      tiermq bench put --quick
      tiermq bench get --json
      tiermq bench compare --list
    """
    if name is None or name in ("-h", "--help"):
        click.echo(ctx.get_help())
        return
    if name not in NAMES:
        raise click.UsageError(f"there is no benchmark {name!r}; there are {', '.join(NAMES)}", ctx)
    root = str(checkout_root())
    if root not in sys.path:
        sys.path.insert(0, root)
    benchmark = importlib.import_module(f"benchmarks.bench_{name}")
    shown_by = benchmark if hasattr(benchmark, "print_result") else importlib.import_module("benchmarks.report")
    shown_by.print_result(benchmark.run(list(arguments)), as_json)
