"""A rollback, run: what the present code has opened, written and closed is opened by the code of an earlier commit.

The earlier program is taken from the repository's history, where the commit is in the name of a corpus: its commands
run in processes of their own, on its pure kernel, so that nothing is compiled.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.standbys import FAST, Sending, messages, replicas
from golden.tiermq_corpus import TIMER_FREE, body, corpora, opened, run, settings_of, tier_of
from servers.loopback import free_ports
from servers.serving import SIZES, Serving
from test_upgrade import STORES, WAITED, check_all, clean
from waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]
ROOT = Path(__file__).resolve().parent.parent
EARLIER = {each: each.name.removesuffix(".tar.xz").split("-")[2] for each in corpora() if each.name.count("-") == 2}


class EarlierProgram:
    """The commands of an earlier commit."""

    def __init__(self, commit: str, folder: Path) -> None:
        done = subprocess.run(["git", "-C", ROOT, "archive", commit, "src"], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"{commit} is not in this checkout's history")
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as packed:
            packed.extractall(folder, filter="data")
        self._environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "TIERMQ_PURE": "1"}
        found = self._python("-c", "import tiermq; print(tiermq.__file__)")
        assert found.strip() == str(folder / "src" / "tiermq" / "__init__.py")

    def _python(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], env=self._environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, *words: str) -> str:
        return self._python("-m", "tiermq.cli", *words)

    @contextmanager
    def serving(self, store: Path, tier: str, settings: dict[str, object]) -> Iterator[str]:
        """Its broker on a store; the address of its name server. It must end in order."""
        port, names = map(str, free_ports(2))
        process = EarlierProcess(self, store, ["--tier", tier, "--port", port, "--namesrv-port", names], settings)
        process.start()
        try:
            yield str(process.ready["nameServer"])
        finally:
            process.terminate()

    def started(self, words: list[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tiermq.cli", *words, "--json"]
        return subprocess.Popen(command, env=self._environment, stdout=subprocess.PIPE, text=True)


class EarlierProcess:
    """`serve` of an earlier program, as `Serving` is of this one."""

    def __init__(self, program: EarlierProgram, store: Path, words: list[str], settings: dict[str, object]) -> None:
        config = store.with_name(f"{store.name}.earlier.toml")
        values = {**SIZES, "bind_address": "127.0.0.1", "broker_name": "b1", **settings}
        config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
        self._program, self._words = program, ["serve", str(store), "-c", str(config), *words]
        self._process: subprocess.Popen[str] | None = None
        self.ready: dict[str, Any] = {}

    def start(self) -> None:
        self._process = self._program.started(self._words)
        assert self._process.stdout is not None
        self.ready = json.loads(self._process.stdout.readline())

    def terminate(self) -> None:
        """It must end in order."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            process.communicate()
            assert process.returncode == 0


@pytest.mark.parametrize("corpus", EARLIER, ids=[each.name for each in EARLIER])
@pytest.mark.parametrize("kind", STORES)
def test_an_earlier_program_goes_on_where_this_one_ended(tmp_path: Path, corpus: Path, kind: str) -> None:
    facts, tier = opened(corpus, kind, tmp_path), tier_of(tmp_path, kind)
    store = tmp_path / kind / "store"
    earlier = EarlierProgram(EARLIER[corpus], tmp_path / "program")
    with Serving(store, "--tier", tier, **settings_of(kind)) as served:  # The upgrade.
        check_all(served, facts, [])
        run(served.name_server, "produce", "orders", "of the present", "--queue", "2", "--key", "present")
        run(served.name_server, "consume", "orders", "--group", "audit", "--queue", "2", "--max", "1", "--quiet")
    earlier.run("store", "check", str(store))
    earlier.run("tier", "verify", tier)
    wanted = sorted([*(body(number) for number in range(facts["messages"])), "of the present"])
    with earlier.serving(store, tier, settings_of(kind)) as name_server:  # The rollback.

        def asked(*words: str) -> str:
            return earlier.run(*words, "--namesrv", name_server)

        read = asked("consume", "orders", "--bodies", "--from", "first").splitlines()
        assert sorted(set(read) - WAITED.keys()) == wanted
        group = json.loads(asked("group", "show", "audit", "--json"))
        offsets = {str(each["queueId"]): each["offset"] for each in group["queues"] if each["topic"] == "orders"}
        assert (offsets["1"], offsets["2"]) == (facts["consumed"]["1"], 1)
        (found,) = asked("query", "orders", "--key", "present", "--json").splitlines()
        assert json.loads(found)["body"] == "of the present"
        asked("produce", "orders", "of the earlier", "--queue", "0")
    earlier.run("store", "check", str(store))
    with Serving(store, "--tier", tier, **settings_of(kind)) as served:  # The upgrade, once more.
        facts["consumed"] |= {"2": 1}
        check_all(served, facts, ["of the present", "of the earlier"])
    clean("store", "check", str(store))
    clean("tier", "verify", tier)
    earlier.run("tier", "restore", tier, "--store", str(tmp_path / "restored"))
    with earlier.serving(tmp_path / "restored", tier, {**settings_of(kind), **TIMER_FREE}) as name_server:
        shown = earlier.run("consume", "orders", "--bodies", "--from", "first", "--namesrv", name_server)
        assert sorted(set(shown.splitlines()) - WAITED.keys()) == sorted([*wanted, "of the earlier"])


@pytest.mark.parametrize("corpus", EARLIER, ids=[each.name for each in EARLIER])
def test_replicas_are_upgraded_and_rolled_back_one_after_the_other_while_messages_are_sent(
    tmp_path: Path, corpus: Path
) -> None:
    """As docs/upgrade.md says: a replica, then the master hands over, then the other; both versions are in one set."""
    program = EarlierProgram(EARLIER[corpus], tmp_path / "program")
    place = ("--tier", (tmp_path / "tier").as_uri())
    with replicas(tmp_path, *place) as of, ExitStack() as ending:
        words = ["--namesrv", of.name_server, "--standby", *place]
        settings = {**FAST, **TIMER_FREE}
        present = {name: Serving(tmp_path / name, *words, **settings) for name in "ab"}
        earlier = {
            name: EarlierProcess(program, tmp_path / name, [*words, "--port", str(present[name].port)], settings)
            for name in "ab"
        }
        for name in "ab":
            ending.callback(present[name].terminate)
            ending.callback(earlier[name].terminate)

        def address(name: str) -> str:
            return f"127.0.0.1:{present[name].port}"

        def is_whole(master: str) -> bool:
            return of.master() == address(master) and len(of.in_sync(present[master])) == 2

        earlier["a"].start()
        until(lambda: of.is_master(present["a"]))
        earlier["b"].start()
        until(lambda: is_whole("a"))
        with Sending(of) as producer:
            for before, after in ((earlier, present), (present, earlier)):
                producer.more()
                before["b"].terminate()
                after["b"].start()
                until(lambda: is_whole("a"))
                producer.more()
                of.run("broker", "demote", address("a"))
                until(lambda: is_whole("b"))
                producer.more()
                before["a"].terminate()
                after["a"].start()
                until(lambda: is_whole("b"))
                producer.more()
                of.run("broker", "demote", address("b"))
                until(lambda: is_whole("a"))
        assert producer.conflicts == []
        found = messages(address("a"))
        assert {offset: found.get(offset) for offset in producer.acknowledged} == producer.acknowledged
