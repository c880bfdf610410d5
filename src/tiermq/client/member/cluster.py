"""Cluster, Producer, Consumer: the clients of `tiermq.connect`, for programs without a loop.

    with tiermq.connect("127.0.0.1:9876") as cluster:
        with cluster.producer("shop") as producer:
            producer.send(tiermq.Message("orders", b"two coffees", keys=["order-42"], tags="paid"))
        with cluster.consumer("audit", topic="orders", start="first") as consumer:
            for message in consumer:
                ...

Each does what the class of the same name with Async before it does, on a loop in a thread of its own. A producer may be
used by many threads; a loop over a consumer's messages belongs to one. A program that ends without closing leaves its
groups all the same: open clusters are closed when the interpreter exits.
"""

from __future__ import annotations

import atexit
import ssl
import weakref
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Required, Self, TypedDict, TypeVar, Unpack

from tiermq.client.cluster_client import QueuePlace
from tiermq.client.member.async_cluster import AsyncCluster, Connecting
from tiermq.client.member.async_consumer import FETCHED_MESSAGES, AsyncConsumer, check_take
from tiermq.client.member.async_producer import AsyncProducer, QueueChoice, choice_of, delay_of
from tiermq.client.member.handlers import Handler
from tiermq.client.member.message_queue import MessageQueue
from tiermq.client.member.outgoing import Outgoing, SendReceipt
from tiermq.client.member.pop_consumer import AsyncSimpleConsumer
from tiermq.client.member.received_message import ReceivedMessage
from tiermq.client.member.session import HEARTBEAT_S
from tiermq.client.member.start_position import Start
from tiermq.client.member.transactions import AsyncTransaction, Check
from tiermq.errors import RemotingError
from tiermq.remoting.loop_thread import LoopThread, result_of
from tiermq.remoting.tls import ClientTls

if TYPE_CHECKING:
    from tiermq.kernel import Message

T = TypeVar("T")


class BatchOptions(TypedDict, total=False):
    """Of `send_all`, and of all other sends."""

    queue: int | QueueChoice | None
    sharding_key: str | None


class SendOptions(BatchOptions, total=False):
    """Of `send` and `send_later`."""

    delay_level: int | None
    delay_s: float | None
    deliver_at: datetime | None


class ProducerOptions(TypedDict, total=False):
    """Of `Cluster.producer`: see `AsyncCluster.producer`."""

    check: Check | None
    timeout_s: float
    patience_s: float
    max_in_flight: int
    max_in_flight_bytes: int
    compress_above: int | None
    compression: str
    trace: bool


class ConsumerOptions(TypedDict, total=False):
    """Of `Cluster.consumer`: see `AsyncCluster.consumer`."""

    topic: str | None
    topics: Mapping[str, str] | Iterable[str] | None
    tags: str | None
    sql: str | None
    start: Start
    on_message: Handler | None
    workers: int
    ordered: bool
    broadcast: bool
    offsets_file: Path | str | None
    auto_ack: bool
    max_buffered: int
    max_buffered_bytes: int
    max_attempts: int
    idle_s: float | None
    trace: bool


class SimpleConsumerOptions(TypedDict, total=False):
    """Of `Cluster.simple_consumer`: see `AsyncCluster.simple_consumer`."""

    topic: Required[str]
    tags: str | None
    sql: str | None
    invisible_s: float
    start: Literal["first", "last"]


class _OnLoop:
    """Calls into the loop's thread."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread

    def __repr__(self) -> str:
        return repr(vars(self)["_inner"]).removeprefix("Async")

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result; an interrupt of the waiting thread cancels the work."""
        future = self._thread.submit(work)
        try:
            return result_of(future)
        except CancelledError as error:
            raise RemotingError("the cluster was closed meanwhile") from error
        except BaseException:
            future.cancel()
            raise


class Transaction(_OnLoop):
    """One message that becomes visible with its block, or never."""

    def __init__(self, thread: LoopThread, inner: AsyncTransaction) -> None:
        super().__init__(thread)
        self._inner = inner

    def __enter__(self) -> Self:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._inner.__aexit__(kind, error, trace))

    @property
    def receipt(self) -> SendReceipt | None:
        """Of the half message."""
        return self._inner.receipt

    def commit(self) -> None:
        """Before the block ends. Raises RemotingError: then whether it was done may be open, and the broker asks."""
        self._run(self._inner.commit())

    def roll_back(self) -> None:
        """Let it never become visible. Raises as `commit` does."""
        self._run(self._inner.roll_back())

    def leave_open(self) -> None:
        """Neither: the broker asks `check` later."""
        self._run(self._inner.leave_open())


class Producer(_OnLoop):
    """Sends messages of a producer group. Any thread may send. Made by `Cluster.producer`."""

    def __init__(self, thread: LoopThread, inner: AsyncProducer) -> None:
        super().__init__(thread)
        self._inner = inner
        self._begun: deque[tuple[Outgoing, QueueChoice | None, Future[SendReceipt]]] = deque()
        self._begin_is_due = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, message: Message, **options: Unpack[SendOptions]) -> SendReceipt:
        """Store a message: see `AsyncProducer.send` for options and errors."""
        later = self.send_later(message, **options)
        try:
            return result_of(later)
        except BaseException:
            if not later.done() and not later.cancel():  # An interrupt of this thread: it is not tried again.
                self._thread.loop.call_soon_threadsafe(self._inner.give_up, later)
            raise

    def send_later(self, message: Message, **options: Unpack[SendOptions]) -> Future[SendReceipt]:
        """The same without waiting for the receipt: this waits only for room. Not to be called on a loop.

        The message is prepared in this thread; many that begin before the loop looks wake it once.
        """
        self._thread.require_elsewhere()
        self._inner.check_open()
        sharding_key = options.get("sharding_key")
        choose = choice_of(options.get("queue"), sharding_key)
        delay = delay_of(options.get("delay_level"), options.get("delay_s"), options.get("deliver_at"))
        outgoing = self._inner.preparation.prepare(message, delay=delay, sharding_key=sharding_key)
        self._inner.room.take_blocking(outgoing.size)
        later: Future[SendReceipt] = Future()
        self._begun.append((outgoing, choose, later))
        if not self._begin_is_due:
            self._begin_is_due = True
            try:
                self._thread.loop.call_soon_threadsafe(self._begin)
            except RuntimeError:  # Another thread has closed the cluster: that is what each of them gets.
                self._begin()
        return later

    def _begin(self) -> None:
        """On the loop, or after its end in any thread. A producer that is closed sends nothing any more."""
        self._begin_is_due = False
        while True:
            try:
                outgoing, choose, later = self._begun.popleft()
            except IndexError:
                return
            if later.set_running_or_notify_cancel():
                self._inner.launch(outgoing, choose, later)
            else:
                self._inner.room.release(outgoing.size)

    def send_oneway(self, message: Message, **options: Unpack[BatchOptions]) -> None:
        """Hand a message to the network, and no more: no broker answers, and a loss is not noticed."""
        self._run(self._inner.send_oneway(message, **options))

    def send_all(self, messages: Iterable[Message], **options: Unpack[BatchOptions]) -> list[SendReceipt]:
        """Store messages in batches; their receipts in the same order."""
        return self._run(self._inner.send_all(messages, **options))

    def request(self, message: Message, *, timeout_s: float | None = None) -> ReceivedMessage:
        """Send a message and wait for the reply of a consumer."""
        return self._run(self._inner.request(message, timeout_s=timeout_s))

    def transaction(self, message: Message, *, queue: int | QueueChoice | None = None) -> Transaction:
        """A block: the message is stored before it, and becomes visible when the block ends without an error."""
        return Transaction(self._thread, self._inner.transaction(message, queue=queue))

    @property
    def metrics(self) -> dict[str, int]:
        """Sends (a batch is one) since the producer was made, and messages of `send` and `send_later` on their way."""
        return self._thread.call(lambda: self._inner.metrics)

    def queues(self, topic: str) -> tuple[QueuePlace, ...]:
        """The queues of a topic that take messages, in the order in which `queue=` counts them."""
        return self._run(self._inner.queues(topic))

    def serve(self, topic: str) -> None:
        """Be known to a topic's brokers before anything is sent, to be asked about transactions."""
        self._run(self._inner.serve(topic))

    def flush(self) -> None:
        """Wait until each message of `send_later` is stored or has failed."""
        self._thread.call(self._begin)
        self._run(self._inner.flush())

    def close(self) -> None:
        """Wait for what is on its way, and leave the group. Twice does no harm."""
        if self._thread.is_running:
            self._thread.call(self._begin)
            self._run(self._inner.close())


class Consumer(_OnLoop):
    """A member of a consumer group: `for message in consumer`, or `poll`, or handlers. A loop over its messages belongs
    to one thread. Made by `Cluster.consumer`, and used with `with`.
    """

    def __init__(self, thread: LoopThread, inner: AsyncConsumer) -> None:
        super().__init__(thread)
        self._inner = inner
        self._cursor = inner.cursor

    def __enter__(self) -> Self:
        self._run(self._inner.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._cursor.finish()
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        message = self._cursor.next()
        while message is None:
            self._inner.require_no_handler()
            batch = self._run(self._inner.take(FETCHED_MESSAGES, self._inner.settings.idle_s))
            if not batch:
                raise StopIteration
            self._cursor.refill(batch)
            message = self._cursor.next()
        return message

    def poll(self, max_messages: int = 32, *, wait_s: float | None = 1.0) -> list[ReceivedMessage]:
        """Up to so many messages; [] when none came in time. Those of the last poll are done now, with `auto_ack`.

        Raises RemotingError when the consumer is closed.
        """
        self._inner.require_no_handler()
        self._inner.require_open()
        check_take(max_messages, wait_s)
        found = self._cursor.next_many(max_messages)
        if not found:
            # Noted as given in this thread: what an interrupt keeps from it must not be done by the next call.
            self._cursor.refill(self._run(self._inner.take(max_messages, wait_s)))
            found = self._cursor.next_many(max_messages)
        return found

    def ack(self, message: ReceivedMessage) -> None:
        """A message is done. For consumers without `auto_ack`. Any thread may call."""
        self._inner.ack(message)

    def retry(self, message: ReceivedMessage, *, delay_level: int = 0) -> None:
        """Let a message come again later, to any member of the group."""
        self._run(self._inner.retry(message, delay_level=delay_level))

    def dead_letter(self, message: ReceivedMessage) -> None:
        """Put a message aside, in `%DLQ%<group>`."""
        self._run(self._inner.dead_letter(message))

    def reply(self, message: ReceivedMessage, body: bytes) -> None:
        """Answer a message of `producer.request`."""
        self._run(self._inner.reply(message, body))

    def seek(self, start: Start) -> None:
        """Continue all queues of this member elsewhere: see `AsyncConsumer.seek`."""
        self._run(self._inner.seek(start))

    def commit(self) -> None:
        """Commit what is done now; it is done every five seconds anyway, and at the end."""
        self._run(self._inner.commit())

    def wait(self) -> None:
        """Until the consumer is closed: handlers work meanwhile."""
        self._run(self._inner.wait())

    @property
    def metrics(self) -> dict[str, int]:
        """Messages since the consumer was made, what waits to be given, and this member's queues."""
        return self._thread.call(lambda: self._inner.metrics)

    @property
    def queues(self) -> list[MessageQueue]:
        """This member's share, without the group's retry topic."""
        return self._thread.call(lambda: self._inner.queues)

    def close(self) -> None:
        """Finish the handlers' messages, commit, and leave the group. Twice does no harm.

        Raises RemotingError in a handler's own thread: it would wait for itself.
        """
        self._inner.require_outside()
        if self._thread.is_running:
            self._run(self._inner.close())


class SimpleConsumer(_OnLoop):
    """Pops messages and acknowledges them one by one. Any thread may do so. Made by `Cluster.simple_consumer`, and used
    with `with`.
    """

    def __init__(self, thread: LoopThread, inner: AsyncSimpleConsumer) -> None:
        super().__init__(thread)
        self._inner = inner

    def __enter__(self) -> Self:
        self._run(self._inner.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def receive(self, max_messages: int = 16, *, wait_s: float = 15.0) -> list[ReceivedMessage]:
        """Up to 32 messages of one broker, which holds the request while it has none; [] after `wait_s`."""
        return self._run(self._inner.receive(max_messages, wait_s=wait_s))

    def ack(self, message: ReceivedMessage) -> None:
        """The message need not come again. Raises RequestRefused when it is too late."""
        self._run(self._inner.ack(message))

    def extend(self, message: ReceivedMessage, invisible_s: float) -> None:
        """It comes again so long after now; 0: at once. Raises RequestRefused when it is too late."""
        self._run(self._inner.extend(message, invisible_s))

    def close(self) -> None:
        """Leave the group. What is not acknowledged comes again when its time is over."""
        if self._thread.is_running:
            self._run(self._inner.close())


class Cluster(_OnLoop):
    """A connection to a cluster, for threads: what it makes works on a loop in a thread of its own. Made by
    `tiermq.connect`; used with `with`, or closed.
    """

    def __init__(self, connecting: Connecting) -> None:
        super().__init__(LoopThread("tiermq-client"))
        self._inner = AsyncCluster(connecting)
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        self._thread.call(self._inner.open)
        _open_clusters.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def producer(self, group: str, **options: Unpack[ProducerOptions]) -> Producer:
        """A producer of a group: see `AsyncCluster.producer` for its options."""
        made = Producer(self._thread, self._thread.call(lambda: self._inner.producer(group, **options)))
        self._producers.add(made)
        return made

    def consumer(self, group: str, **options: Unpack[ConsumerOptions]) -> Consumer:
        """A member of a consumer group: see `AsyncCluster.consumer` for its options."""
        return Consumer(self._thread, self._thread.call(lambda: self._inner.consumer(group, **options)))

    def simple_consumer(self, group: str, **options: Unpack[SimpleConsumerOptions]) -> SimpleConsumer:
        """A consumer that pops messages: see `AsyncCluster.simple_consumer` for its options."""
        return SimpleConsumer(self._thread, self._thread.call(lambda: self._inner.simple_consumer(group, **options)))

    def create_topic(self, topic: str, queues: int = 4, **settings: Any) -> None:
        """Create or change a topic at every broker. Returns when clients can find it."""
        self._run(self._inner.create_topic(topic, queues, **settings))

    @property
    def client_id(self) -> str:
        """By which brokers and operators know this client."""
        return self._inner.client_id

    def close(self) -> None:
        """Close every member that is open, then all connections, and end the thread. Twice does no harm.

        Raises RemotingError in a handler of one of its consumers: it would wait for itself.
        """
        self._inner.require_outside()
        _open_clusters.discard(self)
        if self._thread.is_running:
            self._run(self._inner.close())
            self._thread.stop()
            for producer in tuple(self._producers):  # What came too late for the loop must not be waited for.
                producer._begin()


_open_clusters: set[Cluster] = set()
"""Not weakly: a program may keep a producer alone, whose messages are to be sent before it ends."""


def _close_all() -> None:
    for cluster in tuple(_open_clusters):
        cluster.close()


atexit.register(_close_all)


def connect(
    name_servers: str | Iterable[str] | None = None,
    *,
    access_key: str | None = None,
    secret_key: str | None = None,
    security_token: str | None = None,
    tls: bool | ClientTls | ssl.SSLContext = False,
    heartbeat_s: float = HEARTBEAT_S,
) -> Cluster:
    """A cluster of TierMQ or RocketMQ brokers, for `with`.

    name_servers: `host:port;host:port` or a list; without any, the environment's NAMESRV_ADDR. access_key, secret_key:
    of an account, else the environment's ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY. tls: True for any server, a
    `ClientTls` with certificates, or an SSLContext. heartbeat_s: how often brokers hear of this client. Raises
    BadConfig.
    """
    return Cluster(
        Connecting.of(
            name_servers,
            access_key=access_key,
            secret_key=secret_key,
            security_token=security_token,
            tls=tls,
            heartbeat_s=heartbeat_s,
        )
    )
