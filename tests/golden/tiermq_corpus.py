"""Makes and opens the golden corpora of our own versions: `tests/golden/tiermq-<version>[-<commit>].tar.xz`.

    .venv/bin/python tests/golden/tiermq_corpus.py          makes that of this version; each release gets one, for ever

One with a commit in its name was made by the code of that commit, before a release: an earlier program whose code is
still here. A corpus is never made again by later code.

A corpus has a directory for each of `KINDS`, made by commands of that version and ended in order, with `facts.json`
beside it: what was sent, committed and left waiting. In `posix` is a store with a tier in a directory, with timers, one
of them in the tier, a delayed message and an open transaction; `objects` and `bundles` have the layout of an object
store; `standby` is a replica that a lease made the master; `controller` the state of a controller with a broker of its
set.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from broker.brokers import send_command
from interop.controller_set import ControlledBroker, ControllerProcess, sync_state
from interop.two_brokers import name_server_config
from servers.serving import Serving
from tiermq import __version__
from tiermq.cli.main import cli
from tiermq.namesrv.name_server import NameServer
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import ResponseCode
from waiting import until

HERE = Path(__file__).parent
KINDS = ("posix", "objects", "bundles", "standby", "controller")
QUEUES = 3
MESSAGES = 30
SMALL: dict[str, object] = {
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 20 * 50,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
    "mapped_file_size_timer_log": 52 * 100,
    "tiered_store_index_file_max_hash_slot_num": 50,
    "tiered_store_index_file_max_index_num": 200,
    "tiered_store_group_commit_timeout": 100,
    "flush_consumer_offset_interval": 50,
}
HALF = "UNIQ_KEY\x01HALF1\x02PGROUP\x01PG\x02TRAN_MSG\x01true\x02"
TIMER_FREE = {"timer_wheel_enable": False}
"""A wheel has 37 MiB: one is enough."""


def settings_of(kind: str) -> dict[str, object]:
    more = {} if kind == "posix" else TIMER_FREE
    return {**SMALL, **more, **({"tier_bundle_interval": 1_000} if kind == "bundles" else {})}


def tier_of(path: Path, kind: str) -> str:
    """The tier of a corpus that was opened in `path`."""
    return f"{(path / kind / 'tier').as_uri()}{'?driver=object' if kind in ('objects', 'bundles') else ''}"


def run(name_server: str, *words: str) -> str:
    result = CliRunner().invoke(cli, [*words], env={"NAMESRV_ADDR": name_server})
    assert result.exit_code == 0, f"{words}: {result.output}\n{result.exception!r}"
    return result.stdout


def body(number: int) -> str:
    return f"order {number} " + "." * 900


def fill(served: Serving) -> dict[str, Any]:
    """Messages with keys in all queues, and a group that has consumed some of one."""
    run(served.name_server, "topic", "create", "orders", "--queues", str(QUEUES))
    run(served.name_server, "group", "create", "audit", "--retries", "3")
    for number in range(MESSAGES):
        words = ("--queue", str(number % QUEUES), "--key", f"order-{number}", "--tag", "paid")
        run(served.name_server, "produce", "orders", body(number), *words)
    run(served.name_server, "consume", "orders", "--group", "audit", "--queue", "1", "--max", "4", "--quiet")
    return {"messages": MESSAGES, "queues": QUEUES, "consumed": {"1": 4}}


TIERED_DAYS = 400
"""Of a timer that the tier has: it waits for longer than any corpus is young."""


def wait_in_tier(served: Serving, tier: Path) -> None:
    """A timer far ahead, which is moved into the tier."""
    days = f"TIMER_DELAY_SEC={TIERED_DAYS * 86_400}"
    run(served.name_server, "produce", "orders", "tiered", "--queue", "0", "--property", days)
    until(lambda: any(tier.glob("*/b1/timers.tiermq/new/*")))


def wait_here(served: Serving) -> None:
    """Messages that wait: of a delay level, for a time, and a transaction that is not ended."""
    run(served.name_server, "produce", "orders", "delayed", "--queue", "0", "--delay-level", "18")
    timer = "TIMER_DELAY_SEC=" + str(12 * 3_600)
    run(served.name_server, "produce", "orders", "timed", "--queue", "0", "--property", timer)
    with BlockingClient("127.0.0.1", served.port, timeout_s=60) as client:
        answer = client.request(send_command("orders", b"half", properties=HALF, sys_flag=4))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def make_store(path: Path, kind: str) -> dict[str, Any]:
    with Serving(path / kind / "store", "--tier", tier_of(path, kind), **settings_of(kind)) as served:
        facts = fill(served)
        if kind == "posix":
            wait_here(served)
            wait_in_tier(served, path / kind / "tier")
            facts["tiered_timers"] = 1
            facts["waiting"] = {"delayed messages": 1, "timers": 1, "open transactions": 1}
    return facts


def make_standby(path: Path) -> dict[str, Any]:
    with NameServer(name_server_config()) as names:
        words = ("--namesrv", f"127.0.0.1:{names.port}", "--standby", "--tier", tier_of(path, "standby"))
        with Serving(path / "standby" / "store", *words, **settings_of("standby"), **SHORT_TERM) as served:
            await_master(served)
            facts = fill(served)
            facts["epoch"] = status_of(served)["epoch"]
    return facts


SHORT_TERM: dict[str, object] = {
    "master_lease_term": 3_000, "master_lease_renewal": 700, "master_lease_margin": 600, "master_lease_look": 200,
}  # fmt: skip


def status_of(served: Serving) -> dict[str, Any]:
    words = ["broker", "status", f"127.0.0.1:{served.port}", "--json", "-n", served.name_server]
    found: dict[str, Any] = json.loads(CliRunner().invoke(cli, words).stdout)["replicas"][0]
    return found


def await_master(served: Serving) -> None:
    """Until it may acknowledge, and the name server knows it."""

    def is_master() -> bool:
        found = status_of(served)
        return bool(found["role"] == "master" and found["mayAcknowledge"])

    until(is_master)
    words = ["broker", "status", "b1", "-n", served.name_server]
    until(lambda: CliRunner().invoke(cli, words).exit_code == 0)


def make_controller(path: Path) -> dict[str, Any]:
    with controlled(path / "controller") as (controller, broker):
        until(lambda: sync_state(controller.address)["master"] == 1)
        found = sync_state(controller.address)
        host, _, port = broker.address.rpartition(":")
        with BlockingClient(host, int(port), timeout_s=60) as client:
            until(lambda: client.request(send_command("T", b"controlled")).code == ResponseCode.SUCCESS)
        return {"epoch": found["epoch"], "master": found["master"]}


@contextmanager
def controlled(path: Path) -> Any:
    """A controller over the state in `path`, and a broker of its set; both end in order."""
    with ExitStack() as world:
        names = world.enter_context(NameServer(name_server_config()))
        controller = ControllerProcess((path / "state").as_uri())
        world.callback(controller.stop)
        broker = ControlledBroker(path / "broker", names.port, controller.address)
        world.callback(broker.stop)
        broker.start()
        yield controller, broker


MAKERS: dict[str, Callable[[Path], dict[str, Any]]] = {"standby": make_standby, "controller": make_controller}


def corpora() -> list[Path]:
    return sorted(HERE.glob("tiermq-*.tar.xz"))


def opened(corpus: Path, kind: str, into: Path) -> dict[str, Any]:
    """Unpack one kind of a corpus, and return its facts."""
    with tarfile.open(corpus) as packed:
        packed.extractall(
            into, [each for each in packed if each.name.split("/")[0] in (kind, "facts.json")], filter="data"
        )
    facts: dict[str, Any] = json.loads((into / "facts.json").read_text())
    made: dict[str, Any] = facts["kinds"][kind]
    return made


def make() -> Path:
    """That of this version."""
    target = HERE / f"tiermq-{__version__}.tar.xz"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        kinds = {}
        for kind in KINDS:
            (path / kind).mkdir()
            maker = MAKERS.get(kind)
            kinds[kind] = make_store(path, kind) if maker is None else maker(path)
            for left in (path / kind).rglob("*"):
                if left.name in ("errors", "home") or left.suffix == ".errors":
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
        (path / "facts.json").write_text(json.dumps({"version": __version__, "kinds": kinds}, indent=1, sort_keys=True))
        with tarfile.open(target, "w:xz") as packed:
            for each in sorted(path.iterdir()):
                packed.add(each, each.name, filter=without_owner)
    return target


def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    made = make()
    sys.stdout.write(f"{made}: {os.path.getsize(made)} bytes\n")
