"""What a client does to the process that it is in: it ends with it, and needs nothing that only POSIX has."""

from __future__ import annotations

import subprocess
import sys

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

ONLY_POSIX = ("fcntl", "grp", "posix_spawn", "pwd", "resource", "termios", "pty", "syslog", "uvloop", "mmap")
BLOCKED = f"""
import sys
for name in {ONLY_POSIX!r}:
    sys.modules[name] = None  # An import raises ImportError, as on a system without it.
import tiermq
tiermq.connect, tiermq.aconnect, tiermq.Message, tiermq.Decision, tiermq.RetryLater
import tiermq.client.member.cluster
try:
    tiermq.connect("")
except ValueError as error:
    print(type(error).__name__)
"""


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", program, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_program_that_closes_nothing_ends_and_leaves_its_groups(broker: LocalBroker, topic: str, group: str) -> None:
    done = run(WITHOUT_CLOSE, broker.name_server, topic, group)
    assert (done.returncode, done.stdout, done.stderr) == (0, "last words\n", "")
    assert [message.body for message in broker.messages(topic)] == [b"last words"]
    until(lambda: sum(broker.committed_offset(group, topic, queue) or 0 for queue in range(4)) == 1)


def test_the_client_is_imported_without_what_only_posix_has() -> None:
    done = run(BLOCKED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "BadConfig\n", "")
