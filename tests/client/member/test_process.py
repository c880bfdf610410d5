"""What a client does to the process that it is in: it ends with it, and needs nothing that only POSIX has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
