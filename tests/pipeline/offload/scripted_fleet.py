"""Brokers and a name server whose answers a test decides, for an offload over the wire. Real sockets and frames."""

from __future__ import annotations

import json
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pipeline.offload.wire_world import Waiting
from tiermq.message.record import encode_record
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.offload.job import OffloadJob, OffloadOptions
from tiermq.pipeline.offload.plan import TASK_BYTES, OffloadSettings
from tiermq.pipeline.offload.wire_fleet import FleetScope
from tiermq.pipeline.task_runner import TaskRunner
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.frame import decode_frame, encode_frame
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.names import QueueKey

Answer = tuple[int, dict[str, str], bytes]
NOW_MS = 1_700_000_000_000


def body(value: Any) -> Answer:
    return 0, {}, json.dumps(value).encode()


def rows(
    count: int, low: int = 0, topic: str = "orders", tag: bytes = b"x", store_ms: int = NOW_MS, queue_id: int = 0
) -> list[bytes]:
    return [
        encode_record(
            topic=topic, body=tag, queue_id=queue_id, queue_offset=offset, physical_offset=offset * 1000,
            born_timestamp_ms=store_ms, store_timestamp_ms=store_ms, properties={"KEYS": f"k{offset}"},
        )
        for offset in range(low, low + count)
    ]  # fmt: skip


class Peer:
    """A server. Each request is answered by a thread of its own, so that one may wait."""

    def __init__(self) -> None:
        peer = self
        self.connections: list[socket.socket] = []

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                peer.connections.append(self.request)
                lock, stream = threading.Lock(), self.request.makefile("rb")
                while len(head := stream.read(4)) == 4:
                    frame = head + stream.read(struct.unpack(">I", head)[0])
                    threading.Thread(target=self.answer, args=(frame, lock), daemon=True).start()

            def answer(self, frame: bytes, lock: threading.Lock) -> None:
                command = decode_frame(frame)
                code, ext, data = peer.answer(int(command.code), dict(command.ext))
                reply = encode_frame(command.respond(code, ext=ext, body=data, remark="scripted" if code else None))
                try:
                    with lock:
                        self.request.sendall(reply)
                except OSError:
                    pass  # The client has closed the connection.

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def answer(self, code: int, ext: dict[str, str]) -> Answer:
        raise NotImplementedError

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class ScriptedBroker(Peer):
    """Queue 0 of each topic, from offset `low` on. `answers` replace those to a request code; None: the true one.

    `more`: the records of further queues, of which each topic has as many. `queues` is what it lets clients read,
    `writers` what producers may write to, `listed` the number that its list of queues has: of RocketMQ 4.9 `writers`.
    """

    def __init__(
        self,
        topics: dict[str, list[bytes]],
        *,
        low: int = 0,
        flushed: bool = True,
        more: dict[tuple[str, int], list[bytes]] | None = None,
    ) -> None:
        self.topics, self.low, self.flushed, self.more = topics, low, flushed, more or {}
        self.queues = 1 + max((queue_id for _, queue_id in self.more), default=0)
        self.writers, self.listed = self.queues, 1 << 30
        self.boot = "1"
        self.settings = "flushDiskType=ASYNC_FLUSH\nfileReservedTime=48\n"
        self.answers: dict[int, Callable[[dict[str, str]], Answer | None]] = {}
        super().__init__()

    def answer(self, code: int, ext: dict[str, str]) -> Answer:
        if code in self.answers and (found := self.answers[code](ext)) is not None:
            return found
        if code == RequestCode.GET_BROKER_RUNTIME_INFO:
            return body({"table": {"bootTimestamp": self.boot, "putMessageAverageSize": "100"}})
        if code == RequestCode.GET_BROKER_CONFIG:
            return 0, {}, self.settings.encode()
        if code == RequestCode.GET_ALL_TOPIC_CONFIG:
            row = {"readQueueNums": self.queues, "writeQueueNums": self.writers, "perm": 6}
            return body({"topicConfigTable": dict.fromkeys(self.topics, row)})
        if code == RequestCode.GET_TOPIC_STATS_INFO:
            return self.stats(ext["topic"], self.low, self.low + len(self.topics[ext["topic"]]))
        if code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
            records = self.records(ext)
            low = self.low if records else 0
            return 0, {"offset": str(low if code == RequestCode.GET_MIN_OFFSET else low + len(records))}, b""
        if code == RequestCode.PULL_MESSAGE:
            if int(ext["queueId"]) >= self.queues:
                return ResponseCode.SYSTEM_ERROR, {}, b""
            records = self.records(ext)
            return self.pull(records, int(ext["queueOffset"]) - self.low, int(ext["maxMsgNums"]))
        return body({"offsetTable": {}, "subscriptionGroupTable": {}, "dataVersion": {}})

    def records(self, ext: dict[str, str]) -> list[bytes]:
        topic, queue_id = ext["topic"], int(ext["queueId"])
        return self.more.get((topic, queue_id), []) if queue_id else self.topics[topic]

    def stats(self, topic: str, low: int, high: int) -> Answer:
        ends = {0: (low, high)} | {
            queue_id: (self.low, self.low + len(records))
            for (name, queue_id), records in self.more.items()
            if name == topic
        }
        table = {
            json.dumps({"topic": topic, "brokerName": "b", "queueId": queue_id}): (
                {"minOffset": begin, "maxOffset": end} | ({"flushedOffset": end} if self.flushed else {})
            )
            for queue_id, (begin, end) in ends.items()
            if queue_id < self.listed
        }
        return body({"offsetTable": table})

    def pull(self, records: list[bytes], at: int, most: int) -> Answer:
        if at < 0:
            return ResponseCode.PULL_OFFSET_MOVED, {"nextBeginOffset": str(self.low)}, b""
        found = records[at : at + min(most, 32)]
        code = ResponseCode.SUCCESS if found else ResponseCode.PULL_NOT_FOUND
        return code, {"nextBeginOffset": str(self.low + at + len(found))}, b"".join(found)


class ScriptedNameServer(Peer):
    """`clusters` have names of brokers, `entries` of brokerAddrTable are replaced by a test."""

    def __init__(self, clusters: dict[str, list[str]], entries: dict[str, Any]) -> None:
        self.clusters, self.entries = clusters, entries
        super().__init__()

    def answer(self, code: int, ext: dict[str, str]) -> Answer:
        return body({"clusterAddrTable": self.clusters, "brokerAddrTable": self.entries})


class ScriptedFleet:
    """Brokers of cluster c at one name server, and a tier."""

    def __init__(self, root: Path, brokers: dict[str, ScriptedBroker]) -> None:
        self.tier = (root / "t").as_uri()
        self.brokers = brokers
        entries = {
            name: {"cluster": "c", "brokerName": name, "brokerAddrs": {"0": broker.address}}
            for name, broker in brokers.items()
        }
        self.names = ScriptedNameServer({"c": list(brokers)}, entries)

    def offload(
        self, stop: Waiting | None = None, *, cluster: str | None = "c", scope: dict[str, Any] | None = None,
        task_s: float = 60.0, wave_queues: int = 1000, task_bytes: int = TASK_BYTES,
        runner: TaskRunner | None = None, **options: Any,
    ) -> JobReport:  # fmt: skip
        stop = stop or Waiting()
        fleet = FleetScope(self.names.address, cluster, **(scope or {}))
        settings = OffloadSettings(task_s=task_s, wave_queues=wave_queues, task_bytes=task_bytes)
        chosen = OffloadOptions(
            fleet=fleet,
            stop=stop,
            monotonic=lambda: stop.now_s,
            settings=settings,
            with_index=False,
            config={"tier_manifest_interval": 1},
            **options,
        )
        return OffloadJob([], self.tier, chosen, runner).run()

    def copied(
        self, broker: str = "b", topic: str = "orders", cluster: str = "c", queue_id: int = 0
    ) -> tuple[int, int, int] | None:
        """The min and max offset of a queue in the tier, and how many gaps it has."""
        found = ManifestStore(open_driver(self.tier), "a test").read(QueueKey(cluster, broker, topic, queue_id))
        return None if found is None else (found.min_offset, found.max_offset, len(found.gaps))


@contextmanager
def scripted_fleet(root: Path, **brokers: ScriptedBroker) -> Iterator[ScriptedFleet]:
    with ExitStack() as stack:
        for broker in brokers.values():
            stack.callback(broker.close)
        fleet = ScriptedFleet(root, brokers)
        stack.callback(fleet.names.close)
        yield fleet
