"""GrpcClients: clients by their ids, their settings, and the telemetry streams by which they are reached.

    settings on the stream ─► checked, completed ─► registered as a heartbeat would be ─► settings on the stream
    heartbeat ─► registered again              silent for `channel_expired_timeout`, or terminated ─► forgotten

A `GrpcClient` stands for its client among the broker's connections: the check of a transaction, or an operator's
request to a consumer, reaches the client as a command on its stream.

Invariants: a client belongs to an account and an id; at most one stream of it is used, the newest; what clients send is
bounded (`SETTINGS_BYTES_MAX`, `SETTINGS_TOTAL_BYTES_MAX`, `CLIENTS_MAX`). All state belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.group.client_processor import ACCOUNT
from tiermq.broker.group.group_table import SubscriptionGroup
from tiermq.broker.group.retry_policy import RetryPolicy
from tiermq.broker.group.subscription import Subscription
from tiermq.broker.grpc.grpc_message import SENT_BODY_BYTES_MAX, Refused, are_long, given_message
from tiermq.broker.grpc.local_request import Caller, Pending
from tiermq.broker.pull.sql_filter import filter_of
from tiermq.broker.topic.attributes import LITE_BIND_TOPIC, LITE_CLIENT_QUOTA
from tiermq.errors import BadExpression, CorruptRecord, PeerGone, RequestRefused, RequestTimedOut
from tiermq.grpc.call import Call
from tiermq.grpc.messages import (
    CLIENT_TYPES,
    FILTER_BY_SQL,
    LITE_CONSUMERS,
    LITE_PUSH_CONSUMER,
    PUSH_CONSUMER,
    Code,
    MessageType,
    Settings,
    TelemetryCommand,
    status,
)
from tiermq.message.message_filter import SQL92
from tiermq.message.properties import UNIQ_KEY
from tiermq.message.record import decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import (
    LITE_TOPIC_CHARACTERS_MAX,
    group_problem,
    is_broker_group,
    is_system_topic,
    topic_problem,
)
from tiermq.remoting.codes import VERSION, Language, RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import AccessCheck, Connection
from tiermq.remoting.permissions import Account, Permission
from tiermq.remoting.server import RemotingServer

_log = logging.getLogger(__name__)

SETTINGS_BYTES_MAX = 32 * 1024
CLIENTS_MAX = 20_000
SETTINGS_TOTAL_BYTES_MAX = 256 * 1024 * 1024
"""Of all clients, in memory. Those of a usual client take some thousand bytes."""
TOPIC_BYTES = 1_024
"""What a topic of settings takes in memory, however short its name is."""
PRODUCER_ATTEMPTS = 3
RECEIVE_BATCH = 32
POLL_S = 20
SWEEP_S = 10.0
LITE_QUOTA = 2_000
"""Lite topics of one client, unless its group has another number; as in RocketMQ."""
_LANGUAGES = {
    "JAVA": Language.JAVA, "CPP": Language.CPP, "DOT_NET": Language.DOTNET, "GOLANG": Language.GO,
    "RUST": Language.RUST, "PYTHON": Language.PYTHON, "PHP": Language.PHP, "NODE_JS": Language.NODE_JS,
    "RUBY": Language.RUBY,
}  # fmt: skip
_opaques = itertools.count(1)


class GrpcClient(Connection):
    """One client. See the module."""

    __slots__ = (
        "_answers",
        "_asked",
        "_server",
        "account",
        "caller",
        "forgotten",
        "group",
        "seen_ms",
        "settings",
        "settings_bytes",
        "stream",
        "topics",
    )

    def __init__(self, server: RemotingServer, caller: Caller, forgotten: Callable[[GrpcClient], None]) -> None:
        # Not the base's: there is no transport.
        self.id = 0
        self.loop = caller.loop
        self.peer, self.local = caller.peer, caller.local
        self.attributes = {} if caller.account is None else {ACCOUNT: caller.account}
        self.born_host = caller.born_host
        self.on_close = []
        self.closing = False
        self.last_active_s = 0.0
        self._transport = None
        self._out = []
        self._out_bytes = 0
        self._requests = {}
        self._next_opaque = 0
        self.account = caller.account
        self._server = server
        self.caller = caller
        self.forgotten = forgotten
        self.settings: Any = None
        self.settings_bytes = 0
        self.stream: Call | None = None
        self.group = ""
        self.topics: tuple[str, ...] = ()
        self.seen_ms = 0
        self._answers: dict[int, Pending] = {}
        self._asked: dict[str, tuple[asyncio.Future[RemotingCommand], asyncio.TimerHandle, RemotingCommand]] = {}

    @property
    def is_consumer(self) -> bool:
        return self.settings is not None and self.settings.HasField("subscription")

    @property
    def is_lite(self) -> bool:
        """Whether it consumes lite topics."""
        return self.settings is not None and self.settings.client_type in LITE_CONSUMERS

    # What processors answer to the registration of this client.

    def expect(self, command: RemotingCommand) -> Pending:
        """The answer to a command that a processor serves for this client."""
        command.opaque = next(_opaques)
        self._answers[command.opaque] = pending = Pending()
        return pending

    def send(self, command: RemotingCommand) -> None:
        """An answer."""
        if (pending := self._answers.pop(command.opaque, None)) is not None:
            pending.answer(command)

    def send_at_once(self, command: RemotingCommand) -> None:
        """A refusal."""
        self.send(command)

    def signer_of(self, _acl: AccessCheck, _command: RemotingCommand) -> Account | None:
        """Checked when the call came."""
        return self.account

    # What the broker asks of the client.

    def tell(self, command: Any) -> bool:
        """Send a command on the stream; False if there is none."""
        if self.stream is None or self.stream.ended:
            return False
        self.stream.send(command.SerializeToString())
        return True

    def oneway(self, command: RemotingCommand) -> None:
        """A transaction's check. Members need no notice of others: balance comes from popping."""
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return
        try:
            [message] = decode_records(bytes(command.body))
        except (CorruptRecord, ValueError):
            _log.exception("%s: a half message cannot be decoded", self)
            return
        topic = message.properties.get("REAL_TOPIC", message.topic)
        key = message.get_property(UNIQ_KEY) or command.ext.get("transactionId", "")
        transaction_id = transaction_id_of(
            key, int(command.ext["commitLogOffset"]), int(command.ext["tranStateTableOffset"])
        )

        def ask(given: Any) -> None:
            asked = TelemetryCommand()
            asked.recover_orphaned_transaction_command.message.CopyFrom(given)
            asked.recover_orphaned_transaction_command.transaction_id = transaction_id
            self.tell(asked)

        self._give(message, topic, ask)

    def request(self, command: RemotingCommand, timeout_s: float = 3.0) -> asyncio.Future[RemotingCommand]:
        """What an operator asks of a consumer: its threads, or to consume a message."""
        future: asyncio.Future[RemotingCommand] = self.loop.create_future()
        asked, nonce = TelemetryCommand(), uuid.uuid4().hex
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            asked.print_thread_stack_trace_command.nonce = nonce
        elif command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            [message] = decode_records(bytes(command.body))
            asked.verify_message_command.nonce = nonce
        else:
            future.set_result(
                command.respond(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "a gRPC client cannot be asked for this")
            )
            return future
        if self.stream is None or self.stream.ended:
            future.set_exception(PeerGone(f"{self.caller.client_id}: expected a telemetry stream, found none"))
            return future
        timer = self.loop.call_later(timeout_s, self._late, nonce, timeout_s)
        self._asked[nonce] = (future, timer, command)
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            self.tell(asked)
        else:

            def ask(given: Any) -> None:
                asked.verify_message_command.message.CopyFrom(given)
                self.tell(asked)

            self._give(message, message.topic, ask)
        return future

    def _give(self, message: StoredMessage, topic: str, tell: Callable[[Any], None]) -> None:
        """Call `tell` with a record as the client gets it; one that takes long is made in the pool."""
        make = partial(given_message, message, topic)
        if not are_long([message]):
            tell(make())
            return

        def done(given: Any, failure: Exception | None) -> None:
            if failure is not None:
                _log.error("%s: a message cannot be given to it", self, exc_info=failure)
            else:
                tell(given)

        self._server.run_in_pool(make, done)

    def _late(self, nonce: str, timeout_s: float) -> None:
        future, _, command = self._asked.pop(nonce)
        if not future.done():
            future.set_exception(
                RequestTimedOut(
                    f"{self.caller.client_id}: expected an answer to request {command.code} within {timeout_s} s"
                )
            )

    def answered(self, nonce: str, answer: Callable[[RemotingCommand], RemotingCommand]) -> None:
        """The client has answered a command."""
        known = self._asked.pop(nonce, None)
        if known is None:
            return
        future, timer, command = known
        timer.cancel()
        if not future.done():
            future.set_result(answer(command))

    def close(self) -> None:
        """It has been silent for too long, or has ended."""
        if self.closing:
            return
        self.closing = True
        for future, timer, _ in self._asked.values():
            timer.cancel()
            if not future.done():
                future.set_exception(PeerGone(f"{self.caller.client_id}: the client is gone"))
        self._asked.clear()
        if self.stream is not None:
            self.stream.end()
        self.forgotten(self)

    def abort(self) -> None:
        """The same."""
        self.close()

    def __repr__(self) -> str:
        return f"<gRPC client {self.caller.client_id} of {self.peer[0]}:{self.peer[1]}>"


def transaction_id_of(unique_key: str, log_offset: int, queue_offset: int) -> str:
    """What ends a transaction: no table is needed, and nothing expires."""
    return f"{log_offset:x}-{queue_offset:x}-{unique_key}"


def transaction_place(transaction_id: str) -> tuple[int, int]:
    """The offsets of a half message in the log and in its queue. Raises Refused."""
    try:
        log_offset, queue_offset, _ = transaction_id.split("-", 2)
        place = int(log_offset, 16), int(queue_offset, 16)
    except ValueError:
        place = -1, -1
    if not all(0 <= each < 1 << 63 for each in place):
        raise Refused(
            Code.INVALID_TRANSACTION_ID, f"expected a transaction id of this broker, found {transaction_id[:80]!r}"
        )
    return place


class GrpcClients:
    """See the module."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts
        self._clients: dict[tuple[str, str], GrpcClient] = {}
        self._settings_bytes = 0
        self.on_gone: list[Callable[[GrpcClient], None]] = []
        parts.hooks.every(SWEEP_S, self.sweep)
        parts.metrics.gauge("tiermq_grpc_clients", "gRPC clients with settings", (), lambda: len(self._clients))

    def find(self, caller: Caller) -> GrpcClient | None:
        found = self._clients.get(caller.key)
        return None if found is None or found.settings is None else found

    def is_alive(self, key: tuple[str, str]) -> bool:
        return key in self._clients

    def give_way(self, resume: Callable[[], None]) -> None:
        """Call `resume` when others have been served."""
        self._parts.server.give_way(resume)

    # Settings.

    def check(self, caller: Caller, settings: Any) -> None:
        """Raises Refused for settings that are not served."""
        if settings.ByteSize() > SETTINGS_BYTES_MAX:
            raise Refused(Code.BAD_REQUEST, f"expected settings of at most {SETTINGS_BYTES_MAX} bytes, found more")
        if settings.client_type not in CLIENT_TYPES:
            raise Refused(
                Code.UNRECOGNIZED_CLIENT_TYPE,
                f"expected a client type of {CLIENT_TYPES[0]} to {CLIENT_TYPES[-1]}, found {settings.client_type}",
            )
        if settings.HasField("publishing"):
            for topic in settings.publishing.topics:
                check_topic(topic.name)
                require_topic(caller, topic.name, Permission.PUB)
        elif settings.HasField("subscription"):
            group = settings.subscription.group.name
            check_group(group)
            require_group(caller, group)
            is_lite = settings.client_type in LITE_CONSUMERS
            if not is_lite and self._bound_topic(group) is not None:
                raise Refused(Code.ILLEGAL_CONSUMER_GROUP, f"lite group must use LITE mode: {group}")
            for entry in settings.subscription.subscriptions:
                check_topic(entry.topic.name)
                require_topic(caller, entry.topic.name, Permission.SUB)
                if is_lite:
                    self.require_bound(group, entry.topic.name)
                if entry.expression.type == FILTER_BY_SQL:
                    _check_sql(entry.topic.name, entry.expression.expression)
        else:
            raise Refused(Code.BAD_REQUEST, "expected settings of a producer or a consumer, found neither")

    def _bound_topic(self, group: str) -> str | None:
        found = self._parts.groups.get(group)
        return None if found is None else found.attributes.get(LITE_BIND_TOPIC)

    def require_known_lite(self, caller: Caller, group: str) -> None:
        """Raises Refused for a client of a group of lite consumers that has not sent the settings of one, as after a
        restart of the broker: it sends them again.
        """
        if self._bound_topic(group) is None:
            return
        client = self.find(caller)
        if client is None or not client.is_lite:
            raise Refused(
                Code.UNRECOGNIZED_CLIENT_TYPE,
                f"group {group} is one of lite consumers: expected a client with settings of a lite consumer",
            )

    def require_bound(self, group: str, topic: str) -> None:
        """Raises Refused unless the group is one for lite topics below `topic`."""
        bound = self._bound_topic(group)
        if bound is None:
            raise Refused(
                Code.ILLEGAL_CONSUMER_GROUP,
                f"regular group cannot use LITE mode: {group}: create it with the attribute {LITE_BIND_TOPIC}={topic}",
            )
        if bound != topic:
            raise Refused(
                Code.ILLEGAL_TOPIC, f"lite group {group} is expected to bind topic {bound}, but actual is {topic}"
            )

    def lite_quota(self, group: str) -> int:
        """How many lite topics a client of a group may subscribe to."""
        found = self._parts.groups.get(group)
        return LITE_QUOTA if found is None else int(found.attributes.get(LITE_CLIENT_QUOTA, LITE_QUOTA))

    def take(self, caller: Caller, settings: Any, stream: Call) -> GrpcClient:
        """A client has sent settings that were checked. Raises Refused when there are too many clients."""
        client, size = self._clients.get(caller.key), _held_bytes(settings)
        total = self._settings_bytes + size - (0 if client is None else client.settings_bytes)
        if total > SETTINGS_TOTAL_BYTES_MAX:
            raise Refused(
                Code.TOO_MANY_REQUESTS,
                f"expected at most {SETTINGS_TOTAL_BYTES_MAX} bytes of settings of all clients, found {total}",
            )
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                raise Refused(Code.TOO_MANY_REQUESTS, f"expected at most {CLIENTS_MAX} clients, found them connected")
            client = self._clients[caller.key] = GrpcClient(self._parts.server, caller, self._forget)
        self._settings_bytes, client.settings_bytes = total, size
        client.caller, client.peer, client.account = caller, caller.peer, caller.account
        client.seen_ms = self._parts.clock.now_ms()
        client.settings = self._completed(settings)
        if client.stream is not stream:
            client.stream = stream
        if client.is_consumer:
            client.group = settings.subscription.group.name
        else:
            client.topics = tuple(topic.name for topic in settings.publishing.topics)
        return client

    def _completed(self, settings: Any) -> Any:
        """What the client sent, over what this broker has to say."""
        made = Settings()
        made.CopyFrom(settings)
        made.metric.on = False
        backoff = made.backoff_policy
        if made.HasField("publishing"):
            backoff.Clear()
            backoff.max_attempts = PRODUCER_ATTEMPTS
            backoff.exponential_backoff.initial.nanos = 10_000_000
            backoff.exponential_backoff.max.seconds = 1
            backoff.exponential_backoff.multiplier = 2
            made.publishing.max_body_size = min(SENT_BODY_BYTES_MAX, self._parts.local.config.max_message_size)
            made.publishing.validate_message_type = True
            return made
        subscription = made.subscription
        group = self._parts.groups.get(subscription.group.name)
        subscription.fifo = group is not None and group.consume_message_orderly
        subscription.receive_batch_size = RECEIVE_BATCH
        subscription.long_polling_timeout.seconds = POLL_S
        backoff.Clear()
        backoff.max_attempts = 1 + (16 if group is None else group.retry_max_times)
        if settings.client_type in LITE_CONSUMERS:
            subscription.lite_subscription_quota = self.lite_quota(subscription.group.name)
            subscription.max_lite_topic_size = LITE_TOPIC_CHARACTERS_MAX
        policy = RetryPolicy() if group is None else _policy_of(group)
        if policy.is_exponential:
            exponential = backoff.exponential_backoff
            exponential.initial.FromMilliseconds(policy.initial_ms)
            exponential.max.FromMilliseconds(policy.max_ms)
            exponential.multiplier = policy.multiplier
        else:
            for wait_ms in policy.steps_ms:
                backoff.customized_backoff.next.add().FromMilliseconds(wait_ms)
        return made

    # Registration.

    async def register(self, client: GrpcClient, language: str) -> None:
        """As a heartbeat of remoting: groups and retry topics are made, permissions are checked."""
        client.seen_ms = self._parts.clock.now_ms()
        body: dict[str, Any] = {"clientID": client.caller.client_id}
        if client.is_consumer:
            body["consumerDataSet"] = [self._consumer_data(client)]
        else:
            body["producerDataSet"] = [{"groupName": topic} for topic in client.topics]
        command = RemotingCommand(
            RequestCode.HEART_BEAT,
            body=json.dumps(body).encode(),  # Strings and numbers alone: ten times as fast as the dialect's writer.
            language=_LANGUAGES.get(language, Language.OTHER),
            version=VERSION,
        )
        pending = client.expect(command)
        self._parts.server.take_request(client, command)
        answer = await pending
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(code_of(answer.code), answer.remark or "")
        if client.is_consumer:  # The group may have been made just now.
            group = self._parts.groups.get(client.group)
            client.settings.subscription.fifo = group is not None and group.consume_message_orderly

    def _consumer_data(self, client: GrpcClient) -> dict[str, Any]:
        is_push = client.settings.client_type in (PUSH_CONSUMER, LITE_PUSH_CONSUMER)
        now_ms = self._parts.clock.now_ms()
        return {
            "groupName": client.group,
            "consumeType": "CONSUME_PASSIVELY" if is_push else "CONSUME_ACTIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [
                {
                    "topic": entry.topic.name,
                    "subString": entry.expression.expression or "*",
                    "expressionType": "SQL92" if entry.expression.type == FILTER_BY_SQL else "TAG",
                    "subVersion": now_ms,
                }
                for entry in client.settings.subscription.subscriptions
            ],
        }

    def sends_to(self, caller: Caller, topic: str) -> None:
        """A producer sends to a topic that its settings do not name: checks of its transactions reach it, too."""
        client = self._clients.get(caller.key)
        if client is None or client.is_consumer or topic in client.topics:
            return
        signer = None if caller.account is None else caller.account.access_key
        self._parts.clients.producer_came(topic, caller.client_id, client, Language.OTHER, VERSION, signer)
        client.topics = (*client.topics, topic)

    # Going.

    def terminate(self, client: GrpcClient) -> None:
        """A client has said that it ends."""
        self._parts.server.forget(client)
        client.close()

    def stream_ended(self, client: GrpcClient, stream: Call) -> None:
        if client.stream is stream:
            client.stream = None

    def _forget(self, client: GrpcClient) -> None:
        if self._clients.get(client.caller.key) is client:
            del self._clients[client.caller.key]
            self._settings_bytes -= client.settings_bytes
        for listener in self.on_gone:
            listener(client)

    def sweep(self) -> None:
        """Forget clients that are silent for too long."""
        oldest_ms = self._parts.clock.now_ms() - self._parts.config.channel_expired_timeout
        for client in [each for each in self._clients.values() if each.seen_ms < oldest_ms]:
            _log.info("%s: forgotten: no heartbeat for too long", client)
            self.terminate(client)


def _policy_of(group: SubscriptionGroup) -> RetryPolicy:
    """The default one for what a table of another writer has and no request could have set."""
    try:
        return RetryPolicy.from_json(group.group_retry_policy)
    except RequestRefused as error:
        _log.warning("group %s: its consumers wait by RocketMQ's default policy: %s", group.name, error)
        return RetryPolicy()


def _check_sql(topic: str, expression: str) -> None:
    """Raises Refused."""
    try:
        filter_of(Subscription.of(topic, expression, SQL92))
    except (RequestRefused, BadExpression) as error:
        raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, f"the subscription to {topic}: {error}") from error


def _held_bytes(settings: Any) -> int:
    topics = len(settings.publishing.topics) + len(settings.subscription.subscriptions)
    return int(settings.ByteSize()) + TOPIC_BYTES * topics


def check_topic(name: str) -> None:
    """Raises Refused."""
    problem = topic_problem(name)
    if problem is None and is_system_topic(name):
        problem = f"the topic {name!r} is the system's"
    if problem is not None:
        raise Refused(Code.ILLEGAL_TOPIC, problem)


def check_group(name: str) -> None:
    """Raises Refused."""
    problem = group_problem(name)
    if problem is None and is_broker_group(name):
        problem = f"the group {name!r} is the system's"
    if problem is not None:
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, problem)


def check_consumer(caller: Caller, group: str, topic: str) -> None:
    """Raises Refused for names that are not legal, and RequestRefused for what the caller may not consume."""
    check_group(group)
    check_topic(topic)
    require_group(caller, group)
    require_topic(caller, topic, Permission.SUB)


def require_topic(caller: Caller, topic: str, wanted: Permission) -> None:
    """Raises RequestRefused."""
    if caller.account is not None:
        caller.account.require_topic(topic, wanted)


def require_group(caller: Caller, group: str) -> None:
    """Raises RequestRefused."""
    if caller.account is not None:
        caller.account.require_group(group)


_CODES = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.ILLEGAL_OPERATION: Code.BAD_REQUEST,
    ResponseCode.INVALID_PARAMETER: Code.BAD_REQUEST,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}


def code_of(code: int) -> Code:
    """The protocol's code for a code of remoting."""
    return _CODES.get(code, Code.INTERNAL_SERVER_ERROR)  # type: ignore[call-overload,no-any-return]


def status_of(answer: RemotingCommand) -> Any:
    """The status for an answer of a processor."""
    return status(code_of(answer.code), answer.remark or "")


MIXED = "MIXED"
MESSAGE_TYPES = {
    "NORMAL": (MessageType.NORMAL,),
    "FIFO": (MessageType.FIFO,),
    "DELAY": (MessageType.DELAY,),
    "TRANSACTION": (MessageType.TRANSACTION,),
    "LITE": (MessageType.LITE,),
    "PRIORITY": (MessageType.PRIORITY,),
    MIXED: (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION),
}
"""What the route of a topic names, by its attribute `message.type`; without it, what a mixed one's does. Clients refuse
other messages themselves. A mixed topic takes a priority, too, and does not name it, as at RocketMQ's proxy: the Java
client, up to 5.1.0 at least, cannot use a route that names a type it does not know."""
