"""`tiermq demo`: the main job end to end on this machine, and the proof that it was done.

The steps are in `run`. Here is the user interface: options, checks before anything is written, a
progress line, the result as text or JSON, and the page.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tiermq.cli.demo.orders import RECORD_BYTES
from tiermq.cli.terminal import drawn_line
from tiermq.console.json_case import camel
from tiermq.errors import BadConfig, DiskFull

if TYPE_CHECKING:
    from tiermq.cli.demo.account import Account, Sample, Timeline
    from tiermq.cli.demo.broker import Place
    from tiermq.tier.driver.contract import TierDriver

PAGE = "tiermq-demo.html"
PROBE = "demo-probe.tiermq.json"
# In the store, the tier, the table and Spark's spill files; and the files that exist before messages.
COPIES = 3
FIXED_BYTES = 64 << 20
MASTERS = ("here", "local", "spark://", "yarn", "k8s://", "sc://")
SHOWN = {"put": "sent", "read": "read"}

Watch = Callable[["Timeline", "Sample"], None]


@click.command()
@click.option(
    "--messages",
    default=300_000,
    show_default=True,
    type=click.IntRange(1, 100_000_000),
    help="Approximate number of messages.",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    help="Work in this directory and keep it: store, tier, table. [default: a temporary one]",
)
@click.option(
    "--tier", metavar="URL", help="A tier such as s3://bucket/prefix. [default: a directory beside the store]"
)
@click.option(
    "--page",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path(PAGE),
    show_default=True,
    help="Path of the HTML page with charts.",
)
@click.option("--no-page", is_flag=True, help="Write no page.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs; 'here' means without Spark.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all numbers.")
def demo(
    messages: int, keep: Path | None, tier: str | None, page: Path, no_page: bool, master: str, as_json: bool
) -> None:
    """Run the end-to-end demo: send, kill -9, recover, upload, evict, read, SQL, export, lose the disk, restore.

    A broker, `tiermq serve`, runs in a process of its own. Several producers send orders to it; it is
    killed meanwhile, started again, and no acknowledged message is lost. Spark copies the history to a tier
    while it serves, local files are evicted once their copy is verified, and a lagging consumer reads everything
    back by offset, time and key, from hot and cold as one. So does SQL. A Parquet table is exported. Then the broker's
    whole directory is deleted, and a new broker serves from the tier alone. Each time all messages are counted and
    compared with what was sent. It takes about a minute, and writes a page with charts of flow and throughput.

    Without Java or PySpark the same job copies without them (it needs numpy), and SQL and the table are left out.
    Credentials of a tier come from the environment, such as AWS_ACCESS_KEY_ID. Objects in a tier of your own are not
    deleted.

    Exit code: 0, or 1 if a message is missing or a step failed.

    \b
    Examples:
      tiermq demo
      tiermq demo --messages 1000000 --page ~/demo.html
      tiermq demo --keep ./demo && tiermq tier stat file://$PWD/demo/tier
      tiermq serve -c ./demo/broker.toml
      tiermq demo --tier s3://bucket/prefix
      tiermq demo --master here --json | jq .checks
    """
    import tiermq.pipeline.offload.task  # noqa: F401 - copies; what it needs is missed before a broker is started.
    from tiermq.cli.demo.account import Timeline, bytes_on_disk
    from tiermq.cli.demo.broker import Place
    from tiermq.cli.demo.engine import why_no_spark
    from tiermq.cli.demo.page import page as page_of
    from tiermq.cli.demo.run import Demo
    from tiermq.tier.driver.tier_url import open_driver

    require_master(master)
    target = None if no_page else checked_page(page)
    with contextlib.ExitStack() as stack:
        directory = _directory(keep, stack)
        place = Place(directory / "store", tier or (directory / "tier").as_uri(), directory / "table")
        driver = open_driver(place.tier)
        stack.callback(driver.close)
        require_empty(driver)
        require_room(directory, messages)
        without_spark = why_no_spark(master)
        watch = stack.enter_context(_progress(quiet=as_json))
        timeline = Timeline(lambda: bytes_on_disk(place.store), lambda: tier_bytes(driver), watch)
        run = Demo(place, messages, without_spark, master, _silent if as_json else click.echo)
        with timeline:
            account = run.run(timeline)
        if target is not None:
            target.write_text(page_of(account, timeline), encoding="utf-8")
    _show(account, place, target, kept=keep is not None, own_tier=tier is not None, as_json=as_json)


def _show(account: Account, place: Place, page: Path | None, *, kept: bool, own_tier: bool, as_json: bool) -> None:
    from tiermq.cli.demo.account import seconds

    if as_json:
        click.echo(json.dumps(camel({**account.as_dict(), "page": None if page is None else str(page)})))
        return
    click.echo("\nCounted, and compared with what was sent:")
    for check in account.checks:
        click.echo(f"    {check.count:>12,}  checksum {check.checksum:x}  {check.by}")
    click.echo(
        f"\nNothing was lost: {account.messages:,} messages in {seconds(account.took_s)} "
        f"({account.kernel} kernel, {account.engine})."
    )
    if kept:
        click.echo(f"Kept: {place.store.parent}; `tiermq serve -c {place.settings}` serves it again.")
    if own_tier:
        click.echo(f"The tier keeps its copy: {place.tier}")
    if page is not None:
        click.echo(f"Pictures: {page.absolute().as_uri()}")


def _directory(keep: Path | None, stack: contextlib.ExitStack) -> Path:
    if keep is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiermq-demo-", ignore_cleanup_errors=True)))
    keep = keep.absolute()
    if keep.exists() and any(keep.iterdir()):
        raise BadConfig(f"{keep} is not empty; the demo needs a directory of its own")
    keep.mkdir(parents=True, exist_ok=True)
    return keep


def require_master(master: str) -> None:
    """Reject an invalid master before anything is written. Raises BadConfig."""
    if not master.startswith(MASTERS):
        raise BadConfig(
            f"--master: expected here, local[2], local[*], spark://host:port, yarn or k8s://…, found {master!r}"
        )


def checked_page(page: Path) -> Path:
    """The page's path, checked to be writable. Raises BadConfig before the demo starts."""
    try:
        page.touch()
    except OSError as error:
        raise BadConfig(
            f"the page cannot be written to {page}: {error.strerror}; choose another path with --page"
        ) from error
    return page


def require_empty(driver: TierDriver) -> None:
    """Reject a tier that has history already, or that cannot be written. Raises BadConfig, TierError."""
    first = next(iter(driver.list_segments()), None)
    if first is not None:
        raise BadConfig(
            f"{driver.url} has a history already ({first.key.path}, …); the demo needs an empty tier, such as "
            f"{driver.url.rstrip('/')}/demo-2"
        )
    driver.put_object(PROBE, b"{}")
    driver.delete_object(PROBE)


def require_room(directory: Path, messages: int) -> None:
    """Reject a disk without enough free space. Raises DiskFull."""
    needed = FIXED_BYTES + COPIES * RECORD_BYTES * messages
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise DiskFull(
            f"{directory}: {messages:,} messages need about {needed >> 20:,} MiB, found {free >> 20:,} MiB free; "
            "choose fewer with --messages, or another directory with --keep or TMPDIR"
        )


def tier_bytes(driver: TierDriver) -> int:
    return sum(segment.size for segment in driver.list_segments())


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Watch]:
    """A progress line, on a terminal."""
    with drawn_line(quiet=quiet) as line:
        if line is None:
            yield lambda _timeline, _sample: None
            return
        from tiermq.cli.demo.account import seconds, size

        def show(timeline: Timeline, sample: Sample) -> None:
            step = timeline.steps[-1] if timeline.steps else None
            if step is not None:
                counts = "".join(f" · {sample.counters.get(name, 0):,} {text}" for name, text in SHOWN.items())
                held = f"local {size(sample.local_bytes)} · tier {size(sample.tier_bytes)}"
                line.write(f"{step.title}, {seconds(sample.at_s - step.begin_s)} · {held}{counts}")

        yield show


def _silent(_: str) -> None:
    """For `--json`: no progress, only the result."""
