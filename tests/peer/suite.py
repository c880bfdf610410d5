"""RocketMQ's own integration tests, run against three of our brokers.

    fetch() -> Jars                         the compiled tests of RocketMQ and what they need, our stand-ins compiled
    with PeerSuite(jars, scratch) as suite:
        suite.run("smoke.NormalMessageSendAndRecvIT", without=[…]) -> Outcome

The tests start brokers in their own process by one class, `IntegrationTestBase`. Ours of that name is earlier on the
class path and hands out brokers that run already; nothing else is replaced. One JVM runs every class, as it is asked
for, so brokers and clients stay warm. Nothing of RocketMQ is kept in the repository.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from interop.rocketmq import JAVA_OPENINGS, Unavailable, cache_directory, copy_jars, pom_of
from servers.certificate import loopback_certificate
from servers.loopback import free_ports, stop
from servers.serving import Serving

VERSION = "5.5.0"
"""The oldest release whose tests are published compiled."""
PACKAGE = "org.apache.rocketmq.test."
OWN_PACKAGE = "tiermq.peer."
BROKERS = 3
JAVA_SOURCES = Path(__file__).parent / "java"
# What the tests were compiled with; their jar does not say.
DEPENDENCIES = (
    ("org.apache.rocketmq", "rocketmq-test", VERSION, ""),
    ("org.apache.rocketmq", "rocketmq-test", VERSION, "<classifier>tests</classifier>"),
    ("junit", "junit", "4.13.2", ""),
    ("org.assertj", "assertj-core", "3.22.0", ""),
    ("org.mockito", "mockito-core", "3.10.0", ""),
    ("io.grpc", "grpc-testing", "1.53.0", ""),
)
SETTINGS = {
    "recall_message_enable": True,
    "transaction_check_interval": 1_000,
    "min_invisible_time_mills_for_recv": 3,
    "grpc_client_consumer_min_long_polling_timeout_millis": 0,
    "enable_property_filter": True,
    "max_transfer_count_on_message_in_memory": 1_024,
    "max_transfer_count_on_message_in_disk": 1_024,
}
"""What the suite sets in its own brokers, where it means something here."""


@dataclass(frozen=True, slots=True)
class Jars:
    """The suite, what it needs, and our stand-ins."""

    lib: Path
    classes: Path

    def test_classes(self) -> set[str]:
        """Those of the jar that hold tests, without the package that all share."""
        with zipfile.ZipFile(self.lib / f"rocketmq-test-{VERSION}-tests.jar") as jar:
            names = (name.removesuffix(".class").replace("/", ".") for name in jar.namelist() if "$" not in name)
            return {name.removeprefix(PACKAGE) for name in names if name.endswith(("IT", "Test"))}

    def test_methods(self, name: str) -> set[str]:
        """Those of a class of tests, from whichever class each has them."""
        command = ["javap", "-public", "-cp", f"{self.classes}:{self.lib}/*", name]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = set(re.findall(r"void (test\w+)\(", listed))
        assert found, f"expected methods of tests in {name}, found none: {listed}"
        return found


@dataclass(slots=True)
class Outcome:
    """What became of the tests of one class, by method."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    not_applicable: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def trouble(self) -> str:
        """Why the class does not count as passed; nothing when a method passed and none failed."""
        if self.failed:
            return "\n".join(f"{name}: {why}" for name, why in self.failed.items())
        if self.passed:
            return ""
        assumed = "".join(f"\n  not applicable: {name}: {why}" for name, why in self.not_applicable.items())
        ignored = "".join(f"\n  ignored by RocketMQ: {name}" for name in self.ignored)
        return (
            "expected a method that passes, found none; a class that cannot run here belongs into NOT_APPLICABLE, with "
            f"the reason{assumed}{ignored}"
        )


def fetch() -> Jars:
    """From the cache, or from the registry into the cache. Raises `Unavailable`."""
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed")
    root = cache_directory() / f"rocketmq-test-{VERSION}"
    lib = root / "lib"
    if not lib.is_dir():
        wanted = "\n".join(
            f"    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{version}</version>{more}</dependency>"
            for group, artifact, version, more in DEPENDENCIES
        )
        copy_jars(root, lib, pom_of(wanted), f"RocketMQ's tests {VERSION}")
    return Jars(lib, _compile(root, lib))


def _compile(root: Path, lib: Path) -> Path:
    """Classes are kept by the sources' digest: an edited source is never run from old classes."""
    sources = sorted(JAVA_SOURCES.rglob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    classes = root / f"classes-{digest}"
    if not classes.is_dir():
        partial = root / f"classes.partial-{os.getpid()}"
        command = ["javac", "-nowarn", "-d", str(partial), "-cp", f"{lib}/*", *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(f"our stand-ins do not compile against {lib}:\n{done.stderr}")
        try:
            partial.rename(classes)
        except OSError:
            if not classes.is_dir():
                raise
            shutil.rmtree(partial)  # Another run was faster, and has made the same.
    return classes


def _end(process: subprocess.Popen[str]) -> None:
    stop(process)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


class PeerSuite:
    """See the module. A context manager, used by one thread."""

    def __init__(self, jars: Jars, scratch: Path) -> None:
        self._jars = jars
        self._scratch = scratch
        [self._grpc_port] = free_ports(1)
        self._running = ExitStack()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            brokers: list[Serving] = []
            certificate = self._scratch / "server.pem"
            certificate.write_text("".join(loopback_certificate()))
            for number in range(1, BROKERS + 1):
                words: tuple[str, ...] = ("--namesrv", brokers[0].name_server) if brokers else ()
                store = self._scratch / f"broker-{number}"
                if not brokers:
                    words = ("--grpc-port", str(self._grpc_port), "--tls", "permissive", "--tls-cert", str(certificate))
                served = Serving(store, *words, broker_name=f"TestBrokerName_{number}", **SETTINGS)
                brokers.append(undo.enter_context(served))
            self._process = self._start_java(brokers)
            undo.callback(_end, self._process)
            self._running = undo.pop_all()
        return self

    def _start_java(self, brokers: list[Serving]) -> subprocess.Popen[str]:
        places = ",".join(f"{each.ready['name']}@{each.address}" for each in brokers)
        command = [
            "java",
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            *JAVA_OPENINGS,
            f"-Duser.home={self._scratch}",
            f"-Djava.io.tmpdir={self._scratch}",
            f"-Dpeer.nameServer={brokers[0].name_server}",
            f"-Dpeer.brokers={places}",
            f"-Dpeer.grpcPort={self._grpc_port}",
            "-cp",
            os.pathsep.join([str(self._jars.classes), f"{self._jars.lib}/*"]),
            "tiermq.peer.PeerRun",
        ]
        with (self._scratch / "java.errors").open("ab") as errors:
            return subprocess.Popen(
                command, cwd=self._scratch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def run(self, test_class: str, without: Iterable[str] = ()) -> Outcome:
        """Run a class without some of its methods, and wait for what becomes of it."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        name = test_class if test_class.startswith(OWN_PACKAGE) else PACKAGE + test_class
        process.stdin.write(" ".join([name, *without]) + "\n")
        process.stdin.flush()
        outcome = Outcome()
        for line in process.stdout:
            event = json.loads(line)
            if "done" in event:
                return outcome
            if "passed" in event:
                outcome.passed.append(event["passed"])
            elif "failed" in event:
                outcome.failed[event["failed"]] = event["why"]
            elif "assumed" in event:
                outcome.not_applicable[event["assumed"]] = event["why"]
            else:
                outcome.ignored.append(event["ignored"])
        raise AssertionError(
            f"the suite ended within {test_class}: {(self._scratch / 'java.errors').read_text()[-3000:]}"
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()
