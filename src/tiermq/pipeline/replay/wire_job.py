"""WireReplay: the driver of a replay to running brokers.

    plan ─► topics and permissions checked ─► waves: tasks of source queues send and record ─► progress ─► finished

A wave has at most one part of each source queue, so that no queue is sent by two tasks. With a rate, a wave ends after
about WAVE_S, and each of its tasks has an equal share of the rate: together they never exceed it. The driver's work
is per queue and wave; messages go from executors to brokers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from tiermq.client.cluster_client import BlockingCluster, ClusterClient, Route
from tiermq.errors import BadOption, RequestRefused
from tiermq.history.scan_values import ScanPlan, ScanTask
from tiermq.message.topic_name import is_broker_topic
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.replay.message import ReplayMapping
from tiermq.pipeline.replay.plan import Planning, note, ranges_of, show_plan
from tiermq.pipeline.replay.wire_record import TargetQueue, WireRecord
from tiermq.pipeline.replay.wire_task import GROUP, SendTask, SentQueue, WireTarget, no_target, send_replay
from tiermq.pipeline.task_runner import JobTasks, Progress
from tiermq.remoting.client import parse_name_servers
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.settings import INT_MAX
from tiermq.tier.names import QueueKey

WAVE_S = 10
TASK_BYTES = 32 << 20
QUEUES_PER_TASK = 64
SUB_PROBE_KEY = "tiermq-replay-may-i-ask"


class WireReplay:
    """One run. Belongs to one thread."""

    def __init__(
        self,
        tasks: JobTasks,
        target: WireTarget,
        mapping: ReplayMapping,
        rate: float | None,
        create: int | None,
        record_url: str,
        stop: threading.Event,
        progress: Progress | None,
    ) -> None:
        """Raises BadConfig for an invalid address of a name server, BadOption for an impossible `create`."""
        if create is not None and create < 1:
            raise BadOption(f"expected to create topics with 1 queue or more, found {create}")
        self._servers = sorted(f"{host}:{port}" for host, port in parse_name_servers(target.name_servers))
        self._tasks = tasks
        self._target = target
        self._mapping = mapping
        self._rate = rate
        self._create = create
        self._record_url = record_url
        self._stop = stop
        self._progress = progress or (lambda _done, _total: None)
        self._bytes = 0.0  # Of what was planned.
        self.report = JobReport("replay", ";".join(self._servers), master=tasks.master)

    def run(self, planning: Planning) -> None:
        asked = {**planning.asked, "namesrv": self._servers, "mapping": asdict(self._mapping)}
        record = WireRecord.find(self._record_url, asked)
        if record is not None:
            self.report.details |= {"record": record.url, "name": record.name}
            self.report.problems += record.problems
            found = 0 if record.is_finished else record.catch_up()
            self.report.add(messages_before=record.count)
            if record.is_finished:
                note(
                    self.report,
                    f"this replay has ended: {record.count:,} messages were replayed; a new one has its own record",
                )
                self.report.add(messages=0)
                return
            note(self.report, f"{record.count:,} messages were sent before; {found:,} of them after its last wave")
        plan = planning.plan(record)
        ranges = ranges_of(plan)
        show_plan(self.report, ranges, plan)
        self.report.planned["bytes"] = sum(task.log_bytes for task in plan.tasks)
        if not plan.tasks and record is None:
            note(self.report, "there is nothing in what was asked for: it has expired, or was never stored")
        targets = self._checked_targets(plan, record)
        if self.report.dry_run:
            return
        if record is None:
            record = WireRecord.begin(self._record_url, asked, ranges, targets)
            self.report.details |= {"record": record.url, "name": record.name}
        else:
            record.save()
        if self._send_all(record, plan):
            record.finish()

    # Targets

    def _topics(self, scans: Iterable[ScanTask]) -> set[str]:
        """The topics that messages go to, as far as they are known before the function has run."""
        if self._mapping.topic:
            return {self._mapping.topic}
        return set() if self._mapping.function is not None else {scan.queue.topic for scan in scans}

    def _checked_targets(self, plan: ScanPlan, record: WireRecord | None) -> dict[str, tuple[TargetQueue, ...]]:
        """The queues of each topic that is known before tasks run. A function may name others: tasks check those."""
        topics = self._topics(plan.tasks)
        for topic in sorted(each for each in topics if is_broker_topic(each)):
            raise BadOption(f"topic {topic}: its messages are a broker's own, and are not replayed; use --topic")
        targets: dict[str, tuple[TargetQueue, ...]] = {}
        with BlockingCluster(self._target.access()) as cluster:
            for topic in sorted(topics):
                route = cluster.run(self._route(cluster.client, topic))
                if route is not None:
                    cluster.run(self._check_permissions(cluster.client, route))
                    targets[topic] = tuple(sorted((place.broker_name, place.queue_id) for place in route.writable))
        return targets if record is None else record.targets

    async def _route(self, client: ClusterClient, topic: str) -> Route | None:
        """The topic, which is created if it may be; None for one that a dry run would create. Raises BadOption."""
        route = await client.find_route(topic)
        if route is None and self._create is not None:
            note(self.report, f"topic {topic}: created with {self._create} queues at each broker")
            if self.report.dry_run:
                return None
            await client.create_topic(topic, self._create)
            route = await client.find_route(topic)
        if route is None or not route.writable:
            raise no_target(topic)
        return route

    async def _check_permissions(self, client: ClusterClient, route: Route) -> None:
        """Send to a queue that does not exist: a broker checks the account first, and stores nothing.

        Raises RequestRefused. An account that may not ask for keys can replay, and is warned.
        """
        for broker, address in sorted({(each.broker_name, each.address) for each in route.writable}):
            try:
                await client.ask(
                    address, RequestCode.SEND_MESSAGE_V2, b"?",
                    a=GROUP, b=route.topic, c="", d=0, e=INT_MAX, f=0, g=0, h=0, i="", j=0, k=False, m=False, n=broker,
                )  # fmt: skip
            except RequestRefused as error:
                if error.code != ResponseCode.INVALID_PARAMETER and "queueId" not in str(error):
                    raise RequestRefused(f"topic {route.topic}, broker {broker}: {error}", error.code) from error
            try:
                await client.ask(
                    address,
                    RequestCode.QUERY_MESSAGE,
                    expected=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
                    topic=route.topic,
                    key=SUB_PROBE_KEY,
                    maxNum=1,
                    beginTimestamp=0,
                    endTimestamp=0,
                    _UNIQUE_KEY_QUERY=True,
                )
            except RequestRefused as error:
                note(
                    self.report,
                    f"topic {route.topic}, broker {broker}: keys cannot be asked for ({error}), so a crash repeats up "
                    "to a window of each queue; give the account SUB on the topic",
                )

    # Waves

    def _send_all(self, record: WireRecord, plan: ScanPlan) -> bool:
        """Whether everything was sent; False when it was stopped."""
        queues: dict[QueueKey, deque[ScanTask]] = {}
        for task in plan.tasks:
            queues.setdefault(task.queue, deque()).append(task)
        brokers = tuple(sorted({queue.broker for queue in record.ranges.queues()}))
        waiting = deque(queues.values())
        self.report.add(messages=0)
        while waiting:
            wave = [waiting.popleft() for _ in range(min(len(waiting), self._wave_queues(waiting)))]
            tasks = self._wave_tasks(record, brokers, [queue[0] for queue in wave])
            done = {each.queue: each for some in self._tasks.run(send_replay, tasks) for each in some}
            for queue in wave:
                self._advance(record, queue, done[queue[0].queue])
            record.save()
            self._progress(round(self._bytes), int(self.report.planned["bytes"]))
            waiting.extend(queue for queue in wave if queue)
            if self._stop.is_set() and waiting:
                note(self.report, "stopped; run it again with the same record to go on")
                return False
        return True

    def _wave_queues(self, waiting: Sequence[Sequence[ScanTask]]) -> int:
        """How many source queues are in the next wave: as much as keeps every processor busy for a while."""
        room = TASK_BYTES * self._tasks.parallelism
        count = 0
        for queue in waiting:
            if count and (room < queue[0].log_bytes or count >= QUEUES_PER_TASK * self._tasks.parallelism):
                break
            room -= queue[0].log_bytes
            count += 1
        return count

    def _wave_tasks(self, record: WireRecord, brokers: tuple[str, ...], scans: Sequence[ScanTask]) -> list[SendTask]:
        bundles = self._tasks.bundles(scans, lambda scan: scan.log_bytes, TASK_BYTES)
        rate = None if self._rate is None else self._rate / min(len(bundles), self._tasks.parallelism)
        most = None if rate is None else max(1, int(rate * WAVE_S))
        return [
            SendTask(
                record.name,
                number,
                self._record_url,
                self._target,
                self._mapping,
                {topic: record.targets[topic] for topic in self._topics(some) & record.targets.keys()},
                brokers,
                some,
                rate,
                most,
            )
            for number, some in enumerate(bundles)
        ]

    def _advance(self, record: WireRecord, queue: deque[ScanTask], done: SentQueue) -> None:
        """Add what a task has done of the first scan of a queue, and leave the rest of the scan."""
        scan = queue.popleft()
        begin = scan.from_offset
        left = (scan.to_offset - done.next_offset) / max(1, scan.to_offset - begin)
        left_bytes = round(scan.log_bytes * left)
        self._bytes += scan.log_bytes - left_bytes
        if done.next_offset < scan.to_offset:
            queue.appendleft(replace(scan, from_offset=done.next_offset, log_bytes=left_bytes))
        record.advance(done.queue, done.next_offset, done.messages)
        self.report.problems += record.tell(done.problems)
        self.report.add(messages=done.messages, messages_read=done.read_rows, bytes=done.read_bytes)
        if done.found:
            self.report.add(messages_found=done.found)
