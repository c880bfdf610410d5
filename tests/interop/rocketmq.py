"""The real Apache RocketMQ, fetched with Maven and run on loopback, for tests that compare bytes with it.

    fetch() -> Distribution                  jars in a cache outside the tree, our Java client compiled against them
    Cluster(distribution, store, scratch)    a name server and one broker over a store directory, as a context manager
    Cluster.peer() -> Peer                   RocketMQ's own client: send, read, query

The cache is `$TIERMQ_CACHE` or `~/.cache/tiermq`. `$TIERMQ_ROCKETMQ_VERSION` chooses another release.
Whatever makes this impossible on a machine (no Java, no Maven, no registry) raises `Unavailable` with the reason.

A broker always listens for replicas on the wildcard address, there is no setting against it; everything else is
bound to 127.0.0.1.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from interop.peer import Peer
from servers.loopback import free_ports
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from waiting import until

VERSION = os.environ.get("TIERMQ_ROCKETMQ_VERSION", "5.3.3")
ARTIFACTS = ("rocketmq-broker", "rocketmq-namesrv", "rocketmq-tools")
JAVA_SOURCES = Path(__file__).parent / "java"
BOOT_LINE = "boot success"
SHUTDOWN_TIMEOUT_S = 120.0
CLUSTER_NAME = "DefaultCluster"
BROKER_NAME = "broker-a"

# Small files, so that a few hundred messages fill many of them. Names and meanings are RocketMQ's.
SMALL_FILES: Mapping[str, object] = {
    "mappedFileSizeCommitLog": 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "mapperFileSizeBatchConsumeQueue": 46 * 1000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
}


def python_names(settings: Mapping[str, object]) -> dict[str, Any]:
    """The same settings as `LocalStore.open` takes them: `maxIndexNum` is `max_index_num` there."""
    return {re.sub("([A-Z]+)", r"_\1", name).lower(): value for name, value in settings.items()}


# What a Java newer than 8 must be told before RocketMQ may unmap its files and look at direct memory.
JAVA_OPENINGS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)


class Unavailable(Exception):
    """RocketMQ cannot be run on this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Jars of one RocketMQ release and the compiled Java client of ours; `more` are jars that not everybody needs."""

    version: str
    lib: Path
    classes: Path
    more: tuple[Path, ...] = ()
    options: tuple[str, ...] = ()
    """Of every JVM: system properties, such as those of TLS."""

    def java(self, home: Path, main_class: str, *arguments: str, heap: str = "512m") -> list[str]:
        """The command line that runs `main_class` with everything it writes kept under `home`."""
        return [
            "java",
            f"-Xmx{heap}",
            f"-XX:MaxDirectMemorySize={heap}",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            *JAVA_OPENINGS,
            *self.options,
            f"-Duser.home={home}",
            f"-Drocketmq.home.dir={home}",
            "-cp",
            os.pathsep.join([str(self.classes), *(f"{lib}/*" for lib in (self.lib, *self.more))]),
            main_class,
            *arguments,
        ]


def cache_directory() -> Path:
    return Path(os.environ.get("TIERMQ_CACHE") or Path.home() / ".cache" / "tiermq")


def fetch(version: str = VERSION) -> Distribution:
    """Jars from the cache, or from the registry into the cache, and the client compiled. Raises `Unavailable`."""
    if shutil.which("javac") is None:
        raise Unavailable("javac is not installed")
    made = fetch_servers(version)
    return replace(made, classes=_compile_client(made.lib.parent, made.lib))


def fetch_servers(version: str) -> Distribution:
    """Broker and name server of a release that our Java client is not compiled against. Raises `Unavailable`."""
    if shutil.which("java") is None:
        raise Unavailable("java is not installed")
    root = cache_directory() / f"rocketmq-{version}"
    lib = root / "lib"
    if not lib.is_dir():
        copy_jars(root, lib, pom_of_all(ARTIFACTS, version), f"RocketMQ {version}")
    return Distribution(version, lib, lib)


def copy_jars(root: Path, lib: Path, pom: str, what: str) -> None:
    """The jars that `pom` asks for, into `lib` below `root`, which appears whole or not at all."""
    if shutil.which("mvn") is None:
        raise Unavailable("mvn is not installed and the cache holds no jars")
    root.mkdir(parents=True, exist_ok=True)
    (root / "pom.xml").write_text(pom)
    partial = root / f"lib.partial-{os.getpid()}"
    command = ["mvn", "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(partial, ignore_errors=True)
        first_line = next((line for line in done.stdout.splitlines() if "ERROR" in line), done.stderr[:200])
        raise Unavailable(f"Maven could not fetch {what}: {first_line}")
    # The rename makes the directory appear whole or not at all, so an interrupted download is never taken for one.
    try:
        partial.rename(lib)
    except OSError:
        if not lib.is_dir():
            raise
        shutil.rmtree(partial)  # Another run was faster, and has fetched the same.


def pom_of_all(artifacts: Iterable[str], version: str) -> str:
    """Jars with all that they depend on."""
    return pom_of("\n".join(_dependency(artifact, version) for artifact in artifacts))


def _dependency(artifact: str, version: str, inside: str = "") -> str:
    return (
        f"    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{inside}</dependency>"
    )


def pom_of_one(artifact: str, version: str) -> str:
    """One jar alone, without what it depends on."""
    all_of_them = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    return pom_of(_dependency(artifact, version, all_of_them))


def pom_of(dependencies: str) -> str:
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tiermq</groupId>
  <artifactId>interop</artifactId>
  <version>1</version>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""


def _compile_client(root: Path, lib: Path) -> Path:
    """Classes live in a directory named by the sources' digest: an edited source is never run from old classes."""
    sources = sorted(JAVA_SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    classes = root / f"classes-{digest}"
    if not classes.is_dir():
        partial = root / f"classes.partial-{os.getpid()}"
        command = ["javac", "-nowarn", "-d", str(partial), "-cp", f"{lib}/*", *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(f"our Java client does not compile against {lib}:\n{done.stderr}")
        try:
            partial.rename(classes)
        except OSError:
            if not classes.is_dir():
                raise
            shutil.rmtree(partial)  # Another run was faster, and has made the same.
    return classes


class Server:
    """One JVM whose output is kept in a file, started when it says `boot_line`."""

    def __init__(self, command: list[str], log: Path, boot_line: str = BOOT_LINE) -> None:
        self._log = log
        self._boot_line = boot_line
        self._booted = threading.Event()
        self._ended = threading.Event()
        self.process = subprocess.Popen(
            command,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read_output, name=f"output-of-{log.name}", daemon=True)
        self._reader.start()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        with self._log.open("a") as log, self.process.stdout:
            for line in self.process.stdout:
                log.write(line)
                log.flush()
                if self._boot_line in line:
                    self._booted.set()
        self._ended.set()
        self._booted.set()

    def await_boot(self) -> None:
        """However long it takes: the wait also ends with the process."""
        self._booted.wait()
        if self._ended.is_set():
            self.kill()
            raise AssertionError(
                f"no {self._boot_line!r} from the server; its output was:\n{self._log.read_text()[-4000:]}"
            )

    def stop(self) -> None:
        """A clean shutdown: the termination signal, then waiting until the process is gone."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(SHUTDOWN_TIMEOUT_S)
        self._reader.join()

    def kill(self) -> None:
        """What a crash does: the process gets no chance to write anything more."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(SHUTDOWN_TIMEOUT_S)
        self._reader.join()


class Cluster:
    """A name server and one broker over `store`. Leaving the context stops whatever still runs, cleanly."""

    def __init__(
        self,
        distribution: Distribution,
        store: Path,
        scratch: Path,
        settings: Mapping[str, object] = SMALL_FILES,
        host: str = "127.0.0.1",
        client: Distribution | None = None,
    ) -> None:
        """`client`: another release whose client `peer` runs."""
        self._distribution = distribution
        self._client = client or distribution
        self._host = host
        self._scratch = scratch
        self._name_server_port = free_port()
        self._broker_port = free_port()
        self._peer: Peer | None = None
        self._broker: Server | None = None
        self._name_server: Server | None = None
        scratch.mkdir(parents=True, exist_ok=True)
        (scratch / "namesrv.conf").write_text(
            f"listenPort={self._name_server_port}\nbindAddress=127.0.0.1\nkvConfigPath={scratch}/kv.json\n"
        )
        lines = {**self._broker_settings(store), **settings}
        (scratch / "broker.conf").write_text("".join(f"{name}={_java(value)}\n" for name, value in lines.items()))

    def _broker_settings(self, store: Path) -> dict[str, object]:
        return {
            "brokerClusterName": CLUSTER_NAME,
            "brokerName": BROKER_NAME,
            "brokerId": 0,
            "brokerRole": "ASYNC_MASTER",
            "brokerIP1": self._host,
            "bindAddress": self._host,
            "listenPort": self._broker_port,
            "haListenPort": self._broker_port + 1,
            "namesrvAddr": f"127.0.0.1:{self._name_server_port}",
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            # A wheel file of 37 MiB and its log say nothing about the formats under test.
            "timerWheelEnable": False,
            # On a busy machine a broker refuses what waited for more than 200 ms; that is not what is tested either.
            "waitTimeMillsInSendQueue": 60_000,
        }

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.crash()
            raise
        return self

    def _start(self) -> None:
        name_server_command = self._distribution.java(
            self._scratch, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(self._scratch / "namesrv.conf")
        )
        self._name_server = Server(name_server_command, self._scratch / "namesrv.out")
        self._name_server.await_boot()
        self.start_broker()

    def start_broker(self) -> None:
        """Also again, after its end: over the same store and at the same address."""
        self._broker = Server(self._broker_command(), self._scratch / "broker.out")
        self._broker.await_boot()

    def _broker_command(self) -> list[str]:
        configuration = str(self._scratch / "broker.conf")
        return self._distribution.java(self._scratch, "org.apache.rocketmq.broker.BrokerStartup", "-c", configuration)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def name_server(self) -> str:
        return f"127.0.0.1:{self._name_server_port}"

    @property
    def broker_address(self) -> str:
        return f"{self._host}:{self._broker_port}"

    def await_registered(self, tls: ssl.SSLContext | None = None) -> None:
        """Until the name server knows the broker: it boots before it has registered."""
        with BlockingClient("127.0.0.1", self._name_server_port, tls=tls, timeout_s=60) as client:
            asked = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
            until(lambda: self.broker_address.encode() in bytes(client.request(asked).body))

    def peer(self) -> Peer:
        """RocketMQ's client against this cluster; one per cluster, closed with it."""
        if self._peer is None:
            address = (f"127.0.0.1:{self._name_server_port}", CLUSTER_NAME, BROKER_NAME, self.broker_address)
            command = self._client.java(self._scratch, "Peer", *address, heap="256m")
            self._peer = Peer(command, self._scratch / "peer.err")
        return self._peer

    def stop(self) -> None:
        """Client, broker and name server end in this order, each cleanly."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None
        for server in (self._broker, self._name_server):
            if server is not None:
                server.stop()

    def kill_broker(self) -> None:
        """The broker dies in the middle of whatever it does; clients notice."""
        if self._broker is not None:
            self._broker.kill()

    def crash(self) -> None:
        """Everything ends at once; only the broker had anything to save."""
        for server in (self._broker, self._name_server):
            if server is not None:
                server.kill()
        if self._peer is not None:
            self._peer.kill()
            self._peer = None


def _java(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def free_port() -> int:
    return free_ports(1)[0]
