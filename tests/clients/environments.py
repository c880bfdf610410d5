"""Other people's clients, each in an environment of its own under the cache, and the programs that drive them.

Every client is told the same by one JSON object and tells what it did as JSON lines (see `programs/`), so that a test
does not care which one it has. The cache is `$TIERMQ_CACHE` or `~/.cache/tiermq`. A client that cannot be had here
(no Node, no registry) raises `Unavailable` with the reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from servers.loopback import stop

PROGRAMS = Path(__file__).parent / "programs"


class Unavailable(Exception):
    """A client cannot be had on this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class ForeignClient:
    """One client library: where its packages come from and which program of ours drives it."""

    name: str
    packages: tuple[str, ...]
    program: str
    install: Callable[[tuple[str, ...], Path], list[str]]
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables; `{home}` is the directory of its packages."""
    lacks: frozenset[str] = frozenset()
    """What a job may ask for that this client cannot do."""

    @property
    def home(self) -> Path:
        cache = Path(os.environ.get("TIERMQ_CACHE") or Path.home() / ".cache" / "tiermq")
        name = "+".join(self.packages).translate(str.maketrans("=@:/", "----"))
        if self.program.endswith((".go", ".rs")):  # Compiled: an edited program is never run from an old one.
            name += "-" + hashlib.sha256((PROGRAMS / self.program).read_bytes()).hexdigest()[:16]
        return cache / "clients" / name

    def prepare(self) -> None:
        """Install it, unless it was. Raises Unavailable."""
        if self.home.is_dir():
            return
        self.home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.home.parent, ignore_cleanup_errors=True) as scratch:
            made = Path(scratch, "made")
            made.mkdir()
            command = self.install(self.packages, made)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise Unavailable(f"{self.name} cannot be installed here: {done.stderr.strip()[-300:]}")
            try:
                made.rename(self.home)
            except OSError:
                if not self.home.is_dir():  # Otherwise another run was faster, and has made the same.
                    raise

    def run(self, scratch: Path, **job: Any) -> list[dict[str, Any]]:
        """Do a job and give what it told, line by line. Raises AssertionError when it does not end well."""
        running = self.start(scratch, **job)
        reported: list[dict[str, Any]] = []
        assert running.stdout is not None
        assert running.stderr is not None
        with running.stdout, running.stderr:
            for line in running.stdout:
                if line.startswith("{"):  # Some clients write lines of their own to the standard output.
                    reported.append(json.loads(line))
                    if "done" in reported[-1]:
                        break
            else:
                running.wait()
                raise AssertionError(f"{self.name} ended with {running.returncode}: {running.stderr.read()[-2000:]}")
            # Its work is done and its client shut down. Not all can leave then: one that wraps C++ may wait in an exit
            # handler for a thread that waits for the connection's end.
            stop(running)
        return reported[:-1]

    def start(self, scratch: Path, **job: Any) -> subprocess.Popen[str]:
        """The same in the background."""
        self.prepare()
        program = PROGRAMS / self.program
        command = {
            ".py": [sys.executable, str(program)],
            ".js": ["node", str(program)],
            ".java": ["java", "-cp", f"{self.home}/*", str(program)],
            ".go": [str(self.home / "client")],
            ".rs": [str(self.home / "client")],
        }[program.suffix]
        variables = {name: value.format(home=self.home) for name, value in self.variables.items()}
        return subprocess.Popen(
            [*command, json.dumps(job)],
            cwd=scratch,
            env={**os.environ, "HOME": str(scratch), **variables},  # They keep logs below the user's home.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def _by_pip(packages: tuple[str, ...], target: Path) -> list[str]:
    return [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), *packages]


def _by_pip_with_dependencies(packages: tuple[str, ...], target: Path) -> list[str]:
    return [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), *packages]


def _by_npm(packages: tuple[str, ...], target: Path) -> list[str]:
    for program in ("npm", "node"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed")
    return ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(target), *packages]


def _by_maven(packages: tuple[str, ...], target: Path) -> list[str]:
    for program in ("mvn", "java"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed")
    wanted = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>".format(
            *each.split(":")
        )
        for each in packages
    )
    pom = target.with_suffix(".xml")
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>tiermq</groupId>'
        f"<artifactId>clients</artifactId><version>1</version><dependencies>{wanted}</dependencies></project>"
    )
    return ["mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={target}"]


def _by_go(packages: tuple[str, ...], target: Path) -> list[str]:
    """A compiled client: its program is built with its packages, and is what is kept."""
    if shutil.which("go") is None:
        raise Unavailable("go is not installed")
    shutil.copy(PROGRAMS / "grpc_rocketmq.go", target / "main.go")
    steps = ["go mod init job", *(f"go get {each}" for each in packages), "go mod tidy", "go build -o client ."]
    return ["sh", "-ec", f"cd '{target}'; {'; '.join(steps)}"]


def _by_cargo(packages: tuple[str, ...], target: Path) -> list[str]:
    """The same in Rust. What compiling leaves beside the program is not kept. The crate `rocketmq` asks `time` for less
    than it calls.
    """
    if shutil.which("cargo") is None:
        raise Unavailable("cargo is not installed")
    shutil.copy(PROGRAMS / "grpc_rocketmq.rs", target / "main.rs")
    wanted = "\n".join('{} = "={}"'.format(*each.split("@")) for each in packages)
    (target / "Cargo.toml").write_text(
        '[package]\nname = "client"\nversion = "0.0.0"\nedition = "2021"\n'
        '[[bin]]\nname = "client"\npath = "main.rs"\n'
        f'[dependencies]\n{wanted}\nserde_json = "1"\n'
        'time = { version = "0.3", features = ["local-offset"] }\ntokio = { version = "1", features = ["full"] }\n'
    )
    steps = ("cargo build --quiet", "cp target/debug/client .", "rm -rf target")
    return ["sh", "-ec", f"cd '{target}'; {'; '.join(steps)}"]


CLIENTS = (
    ForeignClient("rocketmq", ("rocketmq==0.4.4",), "cpp_rocketmq.py", _by_pip, {"PYTHONPATH": "{home}"}),
    ForeignClient("ali-ons", ("ali-ons@3.12.0",), "ali_ons.js", _by_npm, {"NODE_PATH": "{home}/node_modules"}),
    ForeignClient(
        "rocketmq-nodejs",
        ("rocketmq-nodejs@1.1.2",),
        "rocketmq_nodejs.js",
        _by_npm,
        {"NODE_PATH": "{home}/node_modules"},
    ),
)

GRPC_CLIENTS = (
    ForeignClient(
        "rocketmq-python-client",
        ("rocketmq-python-client==5.1.2",),
        "grpc_rocketmq.py",
        _by_pip_with_dependencies,
        {"PYTHONPATH": "{home}"},
    ),
    ForeignClient(
        "rocketmq-client-nodejs",
        ("rocketmq-client-nodejs@1.0.8",),
        "grpc_rocketmq.js",
        _by_npm,
        {"NODE_PATH": "{home}/node_modules"},
    ),
)
"""Clients of RocketMQ 5, which speak gRPC."""
GRPC_JAVA = ForeignClient(
    "rocketmq-client-java", ("org.apache.rocketmq:rocketmq-client-java:5.1.0",), "GrpcRocketmq.java", _by_maven
)
"""The same in Java."""
GRPC_JAVA_OLDER = replace(
    GRPC_JAVA, name="rocketmq-client-java-older", packages=("org.apache.rocketmq:rocketmq-client-java:5.0.8",)
)
"""Its last version before lite topics."""
GRPC_JAVA_LITE = replace(GRPC_JAVA, name="rocketmq-client-java-lite", program="GrpcLite.java")
"""Its consumer of lite topics."""
GRPC_GO = ForeignClient(
    "rocketmq-clients-go",
    ("github.com/apache/rocketmq-clients/golang/v5@v5.1.3",),
    "grpc_rocketmq.go",
    _by_go,
    lacks=frozenset({"recall"}),
)
"""The same in Go, compiled."""
GRPC_RUST = ForeignClient(
    "rocketmq-rust", ("rocketmq@5.0.0",), "grpc_rocketmq.rs", _by_cargo, lacks=frozenset({"push", "recall", "tls"})
)
"""The same in Rust, compiled. Its only release has no push consumer."""
