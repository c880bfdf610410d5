"""What an installed wheel must do, with nothing but what it needs beside it: `python wheel_smoke.py compiled`.

Run by cibuildwheel on every wheel that it builds, by `python3 dev.py matrix`, and by tests. Only the standard library
and tiermq: a checkout is not on the path.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MESSAGES = 1_000


def main(kernel: str) -> None:
    import tiermq

    printed = run("--version")
    assert f"version {tiermq.__version__} ({kernel} kernel" in printed, printed
    with tempfile.TemporaryDirectory(prefix="tiermq-smoke-") as folder:
        os.chdir(folder)
        embedded_store()
        if sys.platform == "linux":
            broker()
        if importlib.util.find_spec("obstore") is None:
            no_object_store()
    print(f"{printed.strip()}: ok")


def run(*words: str, **options: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tiermq.cli", *words], capture_output=True, text=True, check=False, env=environment()
    )
    assert done.returncode == options.get("code", 0), done.stdout + done.stderr
    return done.stdout + done.stderr


def environment() -> dict[str, str]:
    return {**os.environ, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL": "http://[::1]:1"}


def embedded_store() -> None:
    """Puts, a tier in a directory, a key, a consumer, and all of it again after a new start."""
    from tiermq import Message, TieredStore

    with TieredStore.open("store", tier="tier") as store:
        bodies = [str(number).encode() for number in range(MESSAGES)]
        store.put_many([Message("orders", body, keys=[f"k{body.decode()}"]) for body in bodies])
    with TieredStore.open("store", tier="tier") as store:
        found = store.query("orders", "k7")
        assert [message.body for message in found] == [b"7"], found
        read = [message.body for message in store.read("orders")]
        assert sorted(read) == sorted(bodies), len(read)
    assert "clean" in run("store", "check", "store")
    assert f"{MESSAGES:,}" in run("tier", "stat", (Path.cwd() / "tier").as_uri())


def broker() -> None:
    """A broker and its name server in a process; a producer and a consumer in others."""
    command = [sys.executable, "-m", "tiermq.cli", "serve", "broker", "--port", "0", "--namesrv-port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            run("produce", "orders", "two coffees", "--key", "order-42", "-n", ready["nameServer"])
            printed = run("query", "orders", "--key", "order-42", "-n", ready["nameServer"])
            assert "two coffees" in printed, printed
        finally:
            process.terminate()


def no_object_store() -> None:
    assert "pip install 'tiermq[s3]'" in run("tier", "stat", "s3://bucket", code=2), "no hint"


if __name__ == "__main__":
    main(*sys.argv[1:])
