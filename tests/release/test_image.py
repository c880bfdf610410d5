"""The image of deploy/Dockerfile, without Docker: which commands work in it, and how much it weighs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from notice_page import closure
from release.test_base_install import ONLY_THE_BASE, plain
from release.wheels import CONSTRAINTS, ROOT, build_sdist, build_wheel, fresh_venv, pip, pythons
from servers.loopback import free_ports

DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
READER = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
IMAGE_BYTES_MAX = 150_000_000
DEBIAN_BYTES = 105_000_000
"""debian:trixie-slim with python3 and ca-certificates, without bytecode: 104.3 MB in a root of debootstrap."""


def extras() -> list[str]:
    found = re.search(r"^ARG EXTRAS=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert found is not None
    return found[1].split(",")


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that finds only the modules of the image."""
    there = {plain(name) for extra in extras() for name in closure("tiermq", extra)} | {"tiermq", "setuptools", "pip"}
    barred = {
        module
        for module, names in importlib.metadata.packages_distributions().items()
        if not {plain(name) for name in names} & there
    }
    assert {"duckdb", "jinja2", "pyspark", "pyarrow"} <= barred
    assert not {"obstore", "uvloop", "hpack", "cryptography"} & barred
    folder = tmp_path_factory.mktemp("image")
    (folder / "sitecustomize.py").write_text(ONLY_THE_BASE.format(barred=sorted(barred)))
    return {**os.environ, "PYTHONPATH": str(folder)}


def tiermq(inside: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tiermq.cli", *words]
    return subprocess.run(command, env=inside, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("console", ("console", "--namesrv", "127.0.0.1:1", "--port", "0")),
        ("serve --console", ("serve", "store", "--port", "0", "--namesrv-port", "0", "--console")),
        ("sql", ("sql", "select 1", "--tier", "file:///nowhere")),
        ("pipeline", ("pipeline", "sql", "select 1", "--tier", "file:///nowhere")),
        ("--otlp", ("serve", "store", "--port", "0", "--namesrv-port", "0", "--otlp", "http://127.0.0.1:1/v1/metrics")),
    ],
)
def test_what_is_not_in_the_image_says_so_and_is_named_by_its_page(
    inside: dict[str, str], tmp_path: Path, command: str, words: tuple[str, ...]
) -> None:
    done = tiermq(inside, *(str(tmp_path / word) if word == "store" else word for word in words))
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert "pip install 'tiermq[" in done.stderr
    (row,) = (line for line in READER.splitlines() if line.startswith("| image |"))
    assert f"`{command}`" in row.partition("Not in it:")[2]


def test_a_broker_of_the_image_serves_both_protocols(inside: dict[str, str], tmp_path: Path) -> None:
    port, grpc = free_ports(2)
    words = ["serve", str(tmp_path / "store"), "--port", str(port), "--namesrv-port", "0", "--grpc-port", str(grpc)]
    command = [sys.executable, "-m", "tiermq.cli", *words, "--tier", (tmp_path / "tier").as_uri(), "--json"]
    with subprocess.Popen(command, env=inside, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        ready = json.loads(broker.stdout.readline())
        try:
            assert (ready["event"], ready["grpc"]) == ("ready", f"127.0.0.1:{grpc}")
            for done in (
                tiermq(inside, "produce", "orders", "hello", "-n", ready["nameServer"]),
                tiermq(inside, "topic", "list", "-n", ready["nameServer"]),
                tiermq(inside, "broker", "drain", ready["name"], "--unread", "-n", ready["nameServer"]),
            ):
                assert done.returncode == 0, done.stdout + done.stderr
        finally:
            broker.terminate()
            broker.stdout.read()
    assert broker.returncode == 0
    assert tiermq(inside, "tier", "verify", (tmp_path / "tier").as_uri()).returncode == 0


def test_what_compose_and_kubernetes_start_is_in_the_image_that_they_name() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "compose" / "compose.yaml").read_text())["services"]
    for name, each in services.items():
        args = (each.get("build") or {}).get("args", {})
        if "build" in each and "pipeline" in (each.get("entrypoint") or []):
            assert args == {"EXTRAS": "all,java"}, name
        elif "build" in each:
            assert args == {}, name
            assert each["command"][0] in ("serve", "namesrv")
            assert not {"--console", "--otlp"} & set(each["command"])


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.skipif(shutil.which("cc") is None or shutil.which("strip") is None, reason="no C compiler here")
def test_the_image_takes_at_most_150_mb(tmp_path: Path) -> None:
    """The Dockerfile's steps for the environment, with the Python that Debian has where it is here."""
    known = pythons([])
    python = known.get("3.13", sys.executable)
    wheel = build_wheel(build_sdist(tmp_path / "sdist"), tmp_path / "wheels", python)
    user = fresh_venv(tmp_path / "venv", python)
    pip(user, "install", "-c", CONSTRAINTS, f"{wheel}[{','.join(extras())}]")
    for path in (tmp_path / "venv").rglob("*.so"):
        subprocess.run(["strip", "--strip-unneeded", path], check=True)
    for path in list((tmp_path / "venv").rglob("__pycache__")):
        shutil.rmtree(path)
    own = sum(path.lstat().st_size for path in (tmp_path / "venv").rglob("*"))
    assert own + DEBIAN_BYTES <= IMAGE_BYTES_MAX, f"{own:,} bytes beside Debian's {DEBIAN_BYTES:,}"
