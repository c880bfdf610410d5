"""Clients of RocketMQ's users beside the Java client itself: rocketmq-client-go v2, rocketmq-spring-boot-starter.

Each is fetched from its registry and built into the cache; where that cannot be done, its tests are skipped with the
reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interop.rocketmq import JAVA_OPENINGS, Unavailable, cache_directory, copy_jars, pom_of
from servers.serving import Serving

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("other-clients")]

HERE = Path(__file__).parent
TOPICS = ("go-plain", "go-ordered", "go-delayed", "go-decided", "spring")
BODIES = [f"order {number}" for number in range(20)]
SECOND_MS = 1_000
SPRING_VERSION = "2.3.4"
Event = dict[str, Any]


# Go.


def build_go() -> Path:
    """The program, built once for its sources. Raises `Unavailable`."""
    if shutil.which("go") is None:
        raise Unavailable("go is not installed")
    sources = sorted((HERE / "go").iterdir())
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()[:16]
    program = cache_directory() / "go-client" / digest
    if not program.is_file():
        program.parent.mkdir(parents=True, exist_ok=True)
        partial = program.with_name(f"{digest}.partial-{os.getpid()}")
        done = subprocess.run(
            ["go", "build", "-o", str(partial), "."], cwd=HERE / "go", capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise Unavailable(f"rocketmq-client-go could not be built: {done.stderr.strip().splitlines()[-1:]}")
        partial.rename(program)
    return program


GoJob = Callable[..., list[Event]]


@pytest.fixture(scope="module")
def go_job(broker: Serving) -> GoJob:
    try:
        program = build_go()
    except Unavailable as reason:
        pytest.skip(f"no Go client here: {reason}")

    def run(**job: Any) -> list[Event]:
        asked = json.dumps({"nameServer": broker.name_server, **job})
        done = subprocess.run([str(program), asked], capture_output=True, text=True, check=False)
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert events, done.stderr[-3000:]
        assert events.pop() == {"done": True}, done.stderr[-3000:]
        return [each for event in events for each in event.values()]

    return run


def test_the_go_client_sends_and_consumes(go_job: GoJob) -> None:
    sent = go_job(topic="go-plain", group="GP", bodies=BODIES, tag="paid", key="order-42")
    assert {each["status"] for each in sent} == {0}
    got = go_job(topic="go-plain", group="G-plain", receive=len(BODIES), tag="paid")
    assert sorted(each["body"] for each in got) == sorted(BODIES)
    assert {(each["tag"], each["key"]) for each in got} == {("paid", "order-42")}
    assert {(each["queue"], each["offset"]) for each in got} == {(each["queue"], each["offset"]) for each in sent}


def test_the_go_client_consumes_in_order(go_job: GoJob) -> None:
    go_job(topic="go-ordered", group="GP", bodies=BODIES)
    got = go_job(topic="go-ordered", group="G-ordered", receive=len(BODIES), orderly=True)
    for queue in {each["queue"] for each in got}:
        offsets = [each["offset"] for each in got if each["queue"] == queue]
        assert offsets == sorted(offsets)
    assert sorted(each["body"] for each in got) == sorted(BODIES)


def test_the_go_client_gets_delayed_messages_when_they_are_due(go_job: GoJob) -> None:
    go_job(topic="go-delayed", group="GP", bodies=["later"], delay=1)
    (got,) = go_job(topic="go-delayed", group="G-delayed", receive=1)
    assert got["body"] == "later"
    assert got["stored"] - got["born"] >= SECOND_MS


def test_of_the_go_client_s_transactions_only_committed_ones_are_delivered(go_job: GoJob) -> None:
    bodies = ["yes 1", "no 1", "yes 2", "no 2", "yes 3"]
    assert len(go_job(topic="go-decided", group="GT", bodies=bodies, transaction=True)) == len(bodies)
    got = go_job(topic="go-decided", group="G-decided", receive=3)
    assert sorted(each["body"] for each in got) == ["yes 1", "yes 2", "yes 3"]


# Spring.


def build_spring() -> tuple[Path, Path]:
    """Jars, and the application compiled against them. Raises `Unavailable`."""
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed")
    root = cache_directory() / f"rocketmq-spring-{SPRING_VERSION}"
    lib = root / "lib"
    if not lib.is_dir():
        wanted = (
            "<dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-spring-boot-starter</artifactId>"
            f"<version>{SPRING_VERSION}</version></dependency>"
        )
        copy_jars(root, lib, pom_of(wanted), f"rocketmq-spring-boot-starter {SPRING_VERSION}")
    sources = sorted((HERE / "spring").rglob("*.java"))
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()[:16]
    classes = root / f"classes-{digest}"
    done = subprocess.run(
        ["javac", "-nowarn", "-d", str(classes), "-cp", f"{lib}/*", *map(str, sources)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return lib, classes


def test_a_spring_boot_application_sends_and_listens(broker: Serving, tmp_path: Path) -> None:
    try:
        lib, classes = build_spring()
    except Unavailable as reason:
        pytest.skip(f"no Spring client here: {reason}")
    command = [
        "java",
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *JAVA_OPENINGS,
        f"-Duser.home={tmp_path}",
        "-cp",
        os.pathsep.join([str(classes), f"{lib}/*"]),
        "tiermq.interop.SpringJob",
        f"--rocketmq.name-server={broker.name_server}",
        "--rocketmq.producer.group=SP",
        "--rocketmq.producer.send-message-timeout=60000",
        "--job.topic=spring",
        "--job.group=SG",
        "--job.receive=7",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    events = [line.split("\t")[1:] for line in done.stdout.splitlines() if line.startswith("@\t")]
    assert events, done.stdout[-3000:]
    assert events[-1] == ["done"], done.stdout[-3000:]
    assert {event[1] for event in events if event[0] == "sent"} == {"SEND_OK"}
    got = {event[1]: event[2:] for event in events if event[0] == "received"}
    assert got.keys() == {*(f"plain {number}" for number in range(5)), "delayed", "commit"}
    assert got["plain 3"][:2] == ["paid", "key-3"]
    assert (got["delayed"][0], got["commit"][0]) == ("later", "decided")
    assert int(got["delayed"][2]) >= SECOND_MS
