"""What a client does to the process that it is in: it ends with it, and needs nothing that only POSIX has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiermq.testing import LocalBroker
from waiting import until

WITHOUT_CLOSE = """
import sys, tiermq
cluster = tiermq.connect(sys.argv[1])
producer = cluster.producer("shop")
producer.send_later(tiermq.Message(sys.argv[2], b"last words"))
seen = []
consumer = cluster.consumer(sys.argv[3], topic=sys.argv[2], start="first", on_message=seen.append)
consumer.__enter__()
while not seen:
    pass
print(seen[0].body.decode())
"""

KEPT_PRODUCER = """
import sys, tiermq
def make():
    return tiermq.connect(sys.argv[1]).producer("shop")
producer = make()
for number in range(2_000):
    producer.send_later(tiermq.Message(sys.argv[2], b"%d" % number))
"""
FORKED = """
import os, sys, tiermq
from tiermq.errors import RemotingError
name_server, topic, group = sys.argv[1:]
cluster = tiermq.connect(name_server)
producer = cluster.producer("shop")
consumer = cluster.consumer(group, topic=topic, start="first")
consumer.__enter__()
producer.send(tiermq.Message(topic, b"parent"))
message = next(consumer)
child = os.fork()
if child == 0:
    for call in (
        lambda: producer.send(tiermq.Message(topic, b"never")),
        lambda: producer.send_later(tiermq.Message(topic, b"never")),
        lambda: producer.flush(),
        lambda: cluster.producer("other"),
        lambda: consumer.poll(),
        lambda: cluster.create_topic(topic),
    ):
        try:
            call()
        except RemotingError as error:
            assert "after the fork" in str(error), error
        else:
            raise AssertionError("it was not refused")
    with tiermq.connect(name_server) as own, own.producer("shop") as again:
        again.send(tiermq.Message(topic, b"child"))
    cluster.close()
    sys.exit()  # As a server's worker ends: by the way of all programs.
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for number in range(100):
    producer.send(tiermq.Message(topic, b"parent"))
print("consumed", 1 + sum(1 for _, message in zip(range(101), consumer)))
consumer.__exit__(None, None, None)
cluster.close()
"""


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", program, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_program_that_closes_nothing_ends_and_leaves_its_groups(broker: LocalBroker, topic: str, group: str) -> None:
    done = run(WITHOUT_CLOSE, broker.name_server, topic, group)
    assert (done.returncode, done.stdout, done.stderr) == (0, "last words\n", "")
    assert [message.body for message in broker.messages(topic)] == [b"last words"]
    until(lambda: sum(broker.committed_offset(group, topic, queue) or 0 for queue in range(4)) == 1)


def test_the_client_works_where_nothing_is_that_only_linux_has(broker: LocalBroker, tmp_path: Path) -> None:
    program = Path(__file__).with_name("without_linux.py")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program), broker.name_server, str(tmp_path / "offsets.json")],
        env={**os.environ, "TIERMQ_PURE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    bodies = ("sent", "sent later", "decided")
    assert sorted(done.stdout.splitlines()) == sorted(f"{how} {body}" for how in ("sync", "async") for body in bodies)
    assert (tmp_path / "offsets.json").is_file()


def test_a_producer_whose_cluster_nobody_keeps_sends_everything_before_the_program_ends(
    broker: LocalBroker, topic: str
) -> None:
    done = run(KEPT_PRODUCER, broker.name_server, topic)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(broker.messages(topic)) == 2_000


@pytest.mark.parametrize("uvloop", ["0", "1"])
def test_a_forked_process_is_told_to_connect_and_leaves_its_parent_s_client_alone(
    broker: LocalBroker, topic: str, group: str, monkeypatch: pytest.MonkeyPatch, uvloop: str
) -> None:
    monkeypatch.setenv("TIERMQ_UVLOOP", uvloop)
    done = run(FORKED, broker.name_server, topic, group)
    assert (done.returncode, done.stdout, done.stderr) == (0, "child 0\nconsumed 102\n", "")
    bodies = [message.body for message in broker.messages(topic)]
    assert (bodies.count(b"parent"), bodies.count(b"child"), len(bodies)) == (101, 1, 102)
