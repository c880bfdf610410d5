"""`tiermq demo`: the main job end to end on this machine, and the proof that it was done.

A child process opens a store and puts messages; each list that the store acknowledged, it reports through a pipe.
In the middle of that it is killed with SIGKILL. The parent then opens what is left, reads everything back, and
compares: every acknowledged message must be there, once, at its place, with its bytes, its key and its time.
Then the history goes to a tier, the whole directory is deleted, and everything is read again from the tier alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from tiermq.cli.demo_tier import TierResult, tier_and_restore
from tiermq.errors import StoreError

TOPIC = "orders"
QUEUES = 4
LIST_MESSAGES = 64
BODY_BYTES = 512
KEYS_TRIED = 200
READ_MESSAGES = 32
TAGS = ("paid", "open", "void")


class DemoFailed(StoreError):
    """The demo found a broken promise."""


@dataclasses.dataclass(frozen=True, slots=True)
class DemoResult:
    """What happened, in numbers."""

    directory: str
    kernel: str
    acknowledged: int
    puts_per_second: int
    recovery_seconds: float
    recovered: int
    reads_per_second: int
    keys_found: int
    key_lookup_ms: float
    checked_records: int
    checks_per_second: int
    tier: TierResult


class Stopwatch:
    """Seconds since it was last asked."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def lap(self) -> float:
        before, self._at = self._at, time.perf_counter()
        return max(self._at - before, 1e-9)


def body_of(number: int) -> bytes:
    """The body of message `number`: known to both processes without telling each other."""
    head = b"order %d " % number
    return head + bytes((number * 31 + at) % 251 for at in range(16)) * ((BODY_BYTES - len(head)) // 16)


def key_of(number: int) -> str:
    return f"order-{number}"


def place_of(number: int) -> tuple[int, int]:
    """Queue and queue offset of message `number`: lists go to the queues in turn."""
    which, within = divmod(number, LIST_MESSAGES)
    return which % QUEUES, which // QUEUES * LIST_MESSAGES + within


def write_for_ever(directory: str) -> None:
    """The child: put lists until somebody kills this process; after each list say how many are acknowledged."""
    from tiermq import LocalStore, Message
    from tiermq.status import PutStatus

    with LocalStore.open(directory, flush_disk_type="SYNC_FLUSH") as store:
        number = 0
        while True:
            queue_id, _ = place_of(number)
            messages = [
                Message(TOPIC, body_of(each), queue_id, keys=[key_of(each)], tags=TAGS[each % len(TAGS)])
                for each in range(number, number + LIST_MESSAGES)
            ]
            results = store.put_many(messages)
            if any(result.status is not PutStatus.PUT_OK for result in results):
                raise DemoFailed(f"a put was refused: {results}")
            number += LIST_MESSAGES
            os.write(1, b"%d\n" % number)


def killed_writer(directory: Path, messages: int) -> tuple[int, float]:
    """Run the child until it has acknowledged `messages`, kill it; how many it acknowledged in all, and how fast."""
    command = [sys.executable, "-c", f"from tiermq.cli.demo import write_for_ever; write_for_ever({str(directory)!r})"]
    acknowledged, started, rate = 0, 0.0, 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        # After the kill the loop goes on until the pipe is empty: what is still in it was acknowledged too.
        for line in child.stdout:
            if line.endswith(b"\n"):  # A kill may cut the last line.
                acknowledged = int(line)
            if not started:
                started = time.monotonic()  # The first list pays for starting up, so the rate leaves it out.
            elif acknowledged >= messages and not rate:
                rate = (acknowledged - LIST_MESSAGES) / (time.monotonic() - started)
                os.kill(child.pid, signal.SIGKILL)
    if child.returncode != -signal.SIGKILL:
        raise DemoFailed(f"the writer was to be killed, but ended by itself with code {child.returncode}")
    return acknowledged, rate


def read_back(store: Any, acknowledged: int) -> int:
    """Read every queue from its start and compare. Returns how many messages there are."""
    found = 0
    for queue_id in range(QUEUES):
        offset = 0
        expected = iter(numbers_of(queue_id))
        while True:
            page = store.get(TOPIC, queue_id=queue_id, offset=offset, max_messages=READ_MESSAGES)
            if not page.messages:
                break
            for message in page.messages:
                number = next(expected)
                if message.queue_offset != place_of(number)[1] or message.body != body_of(number):
                    raise DemoFailed(f"message {number} is not what was put: {message}")
            found += len(page.messages)
            offset = page.next_offset
        missing = next(expected)
        if missing < acknowledged:
            raise DemoFailed(f"message {missing} was acknowledged and is gone")
    return found


def numbers_of(queue_id: int) -> Iterator[int]:
    """The numbers of the messages of one queue, in order, without end."""
    start = queue_id * LIST_MESSAGES
    while True:
        yield from range(start, start + LIST_MESSAGES)
        start += QUEUES * LIST_MESSAGES


def look_up_keys(store: Any, acknowledged: int) -> int:
    """Find acknowledged messages by their keys, evenly over the whole history."""
    tried = range(0, acknowledged, max(1, acknowledged // KEYS_TRIED))
    for number in tried:
        hits = store.query(TOPIC, key=key_of(number), begin_ms=0, end_ms=2**63 - 1, max_messages=8)
        if [message.body for message in hits.messages] != [body_of(number)]:
            raise DemoFailed(f"key {key_of(number)} was acknowledged and is not found")
    return len(tried)


def run(directory: Path, messages: int, tier: str, say: Callable[[str], None]) -> DemoResult:
    """The whole demo in `directory`, telling each step to `say`. Raises DemoFailed when a promise is broken."""
    from tiermq import LocalStore
    from tiermq.kernel import KERNEL
    from tiermq.store.check import check_store

    say(f"1  A child process puts {BODY_BYTES}-byte messages into {QUEUES} queues, each list synced to disk.")
    acknowledged, put_rate = killed_writer(directory, messages)
    say(f"   Killed with SIGKILL after {acknowledged:,} acknowledged messages, {put_rate:,.0f} a second.")
    watch = Stopwatch()
    with LocalStore.open(directory, flush_disk_type="SYNC_FLUSH") as store:
        recovery_seconds = watch.lap()
        say(f"2  Opened what it left: recovered in {recovery_seconds:.3f} s.")
        recovered = read_back(store, acknowledged)
        read_rate = recovered / watch.lap()
        say(f"3  Read {recovered:,} messages back, {read_rate:,.0f} a second: every acknowledged one is there.")
        keys_found = look_up_keys(store, acknowledged)
        key_ms = 1_000 * watch.lap() / keys_found
        say(f"4  Looked up {keys_found} keys, {key_ms:.2f} ms each: all found.")
    watch.lap()
    report = check_store(directory)
    if not report.is_clean or not report.ended_cleanly:
        raise DemoFailed(f"after an orderly close the directory contradicts itself: {report.problems[:3]}")
    checked = report.counts["records"]
    check_rate = checked / watch.lap()
    say(f"5  Closed it and checked {checked:,} records against queues and index: clean.")
    cold = tier_and_restore(
        directory,
        tier,
        lap=watch.lap,
        read_back=lambda store: read_back(store, acknowledged),
        look_up_keys=lambda store: look_up_keys(store, acknowledged),
        say=say,
    )
    return DemoResult(
        directory=str(directory),
        kernel=KERNEL,
        acknowledged=acknowledged,
        puts_per_second=round(put_rate),
        recovery_seconds=recovery_seconds,
        recovered=recovered,
        reads_per_second=round(read_rate),
        keys_found=keys_found,
        key_lookup_ms=key_ms,
        checked_records=checked,
        checks_per_second=round(check_rate),
        tier=cold,
    )


@click.command()
@click.option(
    "--messages", default=50_000, show_default=True, type=click.IntRange(min=1), help="Kill the writer after so many."
)
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Write the store here and keep it (default: a temporary one)."
)
@click.option("--tier", help="URL of a tier, such as s3://bucket/prefix (default: a directory beside the store).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all numbers.")
def demo(messages: int, keep: Path | None, tier: str | None, as_json: bool) -> None:
    """See a store survive a crash and the loss of its disk: put, kill -9, recover, tier, delete, restore, compare.

    A child process puts messages and reports each list that the store acknowledged. It is killed in the middle of its
    work. What it left is opened, recovered and read: every acknowledged message must be there, at its place, with its
    bytes and its key. Then the history is copied to a tier, the directory is deleted, and everything is read once more
    from the tier alone. The exit code is 1 if a message is missing.

    \b
    Examples:
      tiermq demo
      tiermq demo --messages 500000
      tiermq demo --keep ./demo-store && tiermq store stat ./demo-store
      tiermq demo --tier s3://bucket/prefix
      tiermq demo --json
    """
    with contextlib.ExitStack() as stack:
        if keep is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiermq-demo-"))) / "store"
        else:
            directory = keep
            if directory.exists() and any(directory.iterdir()):
                raise click.ClickException(f"{directory} is not empty; the demo needs a directory of its own")
        tier = tier or (directory.absolute().parent / (directory.name + "-tier")).as_uri()
        result = run(directory, messages, tier, _silent if as_json else click.echo)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(result)))
    else:
        click.echo(f"\nNothing acknowledged was lost ({result.kernel} kernel).")


def _silent(_: str) -> None:
    """For `--json`: the numbers come at the end, all at once."""
