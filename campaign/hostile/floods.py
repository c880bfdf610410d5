"""Floods at a broker in a process of its own: its memory stays bounded, others are served, and nothing stays."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from broker.brokers import send_command
from campaign.part import Finding, Outcome
from servers.serving import Serving
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.frame import encode_frame

MB = 1 << 20
GROWTH_MB_MAX = 400
"""More than what all floods here send together: nothing may be kept many times over."""
PROMISE = "no flood takes all memory or keeps others from being served, and its connections go with it"


@dataclass(frozen=True)
class FloodsPart:
    """See the module."""

    peers: int = 200
    rounds: int = 20
    name: str = "floods"
    title: str = "huge frames announced, slow peers, readers that do not read, floods of subscriptions and held pulls"

    def missing(self) -> str:
        return "" if Path("/proc/self/statm").exists() else "a /proc that has a process's memory"

    def round(self, seed: int, scratch: Path) -> Outcome:
        outcome = Outcome()
        scratch.mkdir(parents=True, exist_ok=True)
        chance = random.Random(seed)
        kinds = list(KINDS)
        chance.shuffle(kinds)
        with (
            Serving(scratch / "store") as served,
            BlockingClient("127.0.0.1", served.port, timeout_s=120.0) as bystander,
        ):
            assert served.process is not None
            wrong = []
            bystander.request(send_command("Bystander", b"first"))
            before = _facts(served.process.pid)
            for kind in kinds:
                with contextlib.ExitStack() as peers:
                    KINDS[kind](served.port, self.peers, chance, peers)
                    for _ in range(5):
                        answer = bystander.request(send_command("Bystander", b"by"))
                        if answer.code != ResponseCode.SUCCESS:
                            wrong.append(f"{kind}: others are answered with {answer}")
                    memory_mb, _ = _facts(served.process.pid)
                outcome.counts["floods"] += 1
                outcome.peaks["memory_mb"] = max(outcome.peaks.get("memory_mb", 0.0), memory_mb)
                if memory_mb - before[0] > GROWTH_MB_MAX:
                    wrong.append(f"{kind}: memory grew from {before[0]:.0f} to {memory_mb:.0f} MB")
            while _facts(served.process.pid)[1] > before[1] + 3:
                bystander.request(send_command("Bystander", b"last"))  # Until its connections are gone.
        outcome.counts["rounds"] += 1
        outcome.counts["peers"] += self.peers * len(kinds)
        outcome.findings += [Finding(PROMISE, each, seed) for each in wrong]
        return outcome

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        return next(iter(self.round(seed, scratch).findings), None)


def _facts(pid: int) -> tuple[float, int]:
    """Resident memory in MB, and open sockets."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    sockets = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # It was closed meanwhile.
            sockets += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
    return pages * os.sysconf("SC_PAGE_SIZE") / MB, sockets


Flood = Callable[[int, int, random.Random, contextlib.ExitStack], None]


def _connected(port: int, peers: contextlib.ExitStack) -> socket.socket:
    return peers.enter_context(socket.create_connection(("127.0.0.1", port)))


def _announced(port: int, count: int, chance: random.Random, peers: contextlib.ExitStack) -> None:
    for _ in range(count):
        peer = _connected(port, peers)
        peer.sendall(struct.pack(">iI", chance.randrange(MB, 15 * MB), 4) + bytes(64 * 1024))


def _slow(port: int, count: int, chance: random.Random, peers: contextlib.ExitStack) -> None:
    """Slow peers: a few bytes at a time, of a frame that never ends."""
    frame = encode_frame(send_command("Slow", bytes(1000)))
    sockets = [_connected(port, peers) for _ in range(count)]
    at = 0
    for _ in range(12):
        step = 1 + chance.randrange(3)
        for peer in sockets:
            peer.sendall(frame[at : at + step])
        at += step


def _deaf(port: int, count: int, chance: random.Random, peers: contextlib.ExitStack) -> None:
    """Ask for much, and read nothing of it."""
    del chance
    request = encode_frame(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG))
    for _ in range(count // 4):
        peer = _connected(port, peers)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(50):
                peer.send(request)


def _subscriptions(port: int, count: int, chance: random.Random, peers: contextlib.ExitStack) -> None:
    client = peers.enter_context(BlockingClient("127.0.0.1", port, timeout_s=120.0))
    topics = [
        {"topic": f"flood-{chance.randrange(10**9)}", "subString": "a || b" * 20, "expressionType": "TAG"}
        for _ in range(count)
    ]
    consumers = [{"groupName": f"flood-{number}", "subscriptionDataSet": topics} for number in range(20)]
    body = json.dumps({"clientID": "flood", "consumerDataSet": consumers}).encode()
    client.request(RemotingCommand(RequestCode.HEART_BEAT, body=body))


def _held(port: int, count: int, chance: random.Random, peers: contextlib.ExitStack) -> None:
    """Pulls that wait for messages that never come."""
    del chance
    fields = {
        "consumerGroup": "held", "topic": "Bystander", "queueId": "1", "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "100000", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    peer = _connected(port, peers)
    peer.sendall(b"".join(encode_frame(RemotingCommand(11, opaque=n, ext=fields)) for n in range(count * 20)))


KINDS: dict[str, Flood] = {
    "huge frames announced": _announced,
    "slow peers": _slow,
    "peers that do not read": _deaf,
    "subscriptions": _subscriptions,
    "held pulls": _held,
}
