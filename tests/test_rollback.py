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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from golden.tiermq_corpus import TIMER_FREE, body, corpora, opened, run, settings_of, tier_of
from servers.loopback import free_ports
from servers.serving import SIZES, Serving
from test_upgrade import STORES, WAITED, check_all, clean

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
        config = store.with_name("earlier.toml")
        values = {**SIZES, "bind_address": "127.0.0.1", "broker_name": "b1", **settings}
        config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
        port, names = map(str, free_ports(2))
        words = ["serve", str(store), "-c", str(config), "--tier", tier, "--port", port, "--namesrv-port", names]
        command = [sys.executable, "-m", "tiermq.cli", *words, "--json"]
        with subprocess.Popen(command, env=self._environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                ready: dict[str, Any] = json.loads(process.stdout.readline())
                yield str(ready["nameServer"])
            finally:
                process.send_signal(signal.SIGTERM)
                process.stdout.read()
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
