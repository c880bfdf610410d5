"""LiteCalls: lite topics, which are many small queues behind one topic: SyncLiteSubscription, and their receives.

    send with lite_topic ─► a message of the parent topic, and a unit in the light queue %LMQ%$parent$lite
    subscription ─► client is interested ─► arrival, acknowledgement, or a time that is over ─► the queue is ready
    receive ─► ready queues, each popped in order ─► held back until its messages are acknowledged, or are due again

A client looks at queues in which something has happened, not at all that it has subscribed to. Subscriptions are in
memory: clients send all of theirs every half minute. What was consumed is the group's offset in the light queue.

    Shared      clients of a group share the lite topics that several of them want
    Exclusive   a lite topic belongs to the client of the group that asked for it last; the one that had it is notified,
                and again each time when it sends all that it wants: no record of who lost what is needed

Invariants: a queue in `blocked` has a time at which it is looked at again; nothing of a queue is given while messages
of it are held back (`OrderInfos`); what clients subscribe to is bounded. All state but the board belongs to the loop.
"""

from __future__ import annotations

import threading
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.grpc.grpc_clients import GrpcClient, GrpcClients, check_consumer
from tiermq.broker.grpc.grpc_leases import RELEASE_MS, Given, GrpcLeases
from tiermq.broker.grpc.grpc_message import Refused
from tiermq.broker.grpc.local_request import Caller, LocalRequest, Pending
from tiermq.broker.pop.pop_acks import ORDERED_QUEUE, Receipt
from tiermq.broker.pop.pop_checkpoints import PoppedMessage
from tiermq.broker.pop.pop_processor import PopProcessor
from tiermq.broker.pop.pop_reader import PopResult, whole
from tiermq.broker.pop.pop_topics import MARK_NORMAL
from tiermq.broker.pop.pop_waiting import LOOK_MS, Pop
from tiermq.broker.topic.attributes import (
    LITE,
    LITE_EXCLUSIVE,
    LITE_MODEL,
    LITE_RESET_LEFT,
    LITE_RESET_TAKEN,
    MESSAGE_TYPE,
)
from tiermq.commitlog.dispatch_request import DispatchRequest
from tiermq.grpc.messages import Code, LiteAction, OffsetRule, TelemetryCommand, message_class, status
from tiermq.message.record import decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import LITE_SEPARATOR, lite_queue, lite_topic_problem
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.limits import SLICE_S

if TYPE_CHECKING:
    from tiermq.broker.grpc.grpc_service import Ask

SyncLiteSubscriptionResponse = message_class("SyncLiteSubscriptionResponse")
COLD_MS = 1_000
"""After this time a queue is looked at again that could not be read now."""


class LiteMessage(NamedTuple):
    """A message of a lite topic that was popped."""

    queue: str
    """The light queue."""
    message: StoredMessage
    receipt: Receipt
    attempt: int


class LiteClient:
    """What one client has subscribed to, by names of light queues. See the module."""

    __slots__ = ("blocked", "group", "owner", "queues", "ready", "waits")

    def __init__(self, owner: GrpcClient) -> None:
        self.owner = owner
        self.group = owner.group
        self.queues: set[str] = set()
        self.ready: dict[str, None] = {}
        self.blocked: dict[str, int] = {}
        self.waits: dict[Pending, int] = {}
        """Receives that wait, and when their time is over."""

    def wake(self) -> None:
        for pending in tuple(self.waits):
            pending.answer(RemotingCommand(0))

    def lost(self, name: str) -> None:
        """Another client of its group has this lite topic. Without a stream it is notified when it asks again."""
        command = TelemetryCommand()
        command.notify_unsubscribe_lite_command.lite_topic = name.rpartition(LITE_SEPARATOR)[2]
        self.owner.tell(command)

    def due_ms(self) -> int | None:
        """When something has to be looked at."""
        return min((*self.waits.values(), *self.blocked.values()), default=None)


class LiteCalls:
    """See the module."""

    def __init__(self, parts: BrokerContext, clients: GrpcClients, pops: PopProcessor, leases: GrpcLeases) -> None:
        self._parts = parts
        self._clients = clients
        self._pops = pops
        self._leases = leases
        self._lite: dict[tuple[str, str], LiteClient] = {}
        self._subscribers: dict[str, dict[LiteClient, None]] = {}
        self._count = 0
        self._board: set[str] = set()
        self._board_lock = threading.Lock()
        parts.local.add_arrival_listener(self._arrived)
        clients.on_gone.append(self._gone)
        parts.hooks.every(LOOK_MS / 1000, self._look)
        parts.metrics.gauge(
            "tiermq_lite_subscriptions", "lite topics that clients have subscribed to", (), lambda: self._count
        )

    def is_lite(self, caller: Caller) -> bool:
        """Whether the client has said that it consumes lite topics."""
        client = self._clients.find(caller)
        return client is not None and client.is_lite

    def require_parent(self, topic: str) -> None:
        """Raises Refused unless lite topics may be used below `topic`."""
        config = self._parts.local.config
        if not (config.enable_lmq and config.enable_multi_dispatch):
            raise Refused(
                Code.UNSUPPORTED,
                "lite topics need the broker's settings enableLmq=true and enableMultiDispatch=true",
            )
        found = self._parts.topics.get(topic)
        if found is None:
            raise Refused(Code.TOPIC_NOT_FOUND, f"topic {topic} does not exist: create it with message.type=LITE")
        if found.attributes.get(MESSAGE_TYPE) != LITE:
            raise Refused(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, f"expected a topic with message.type=LITE, found {topic}"
            )

    # Subscribing.

    async def sync(self, ask: Ask) -> Any:
        """What a client wants of lite topics: more, less, exactly these, or none."""
        request = ask.request
        group, topic = request.group.name, request.topic.name
        check_consumer(ask.caller, group, topic)
        known = self._known(ask, group)
        self.require_parent(topic)
        self._clients.require_bound(group, topic)
        if len(request.lite_topic_set) > self._clients.lite_quota(group):
            raise self._over_quota(group)
        named = set()
        for each in request.lite_topic_set:
            named.add(light_queue(topic, each))
            await ask.give_way()
        if self._clients.find(ask.caller) is not known:
            raise self._has_ended()
        client = self._lite_client(known)
        if request.action == LiteAction.COMPLETE_ADD:
            await self._drop(ask, client, client.queues - named)
        if request.action in (LiteAction.PARTIAL_ADD, LiteAction.COMPLETE_ADD):
            await self._add(ask, client, named - client.queues)
            return SyncLiteSubscriptionResponse(status=status(Code.OK))
        is_partial = request.action == LiteAction.PARTIAL_REMOVE
        gone = client.queues & named if is_partial else set(client.queues)
        await self._drop(ask, client, gone, resets=is_partial and self._has(group, LITE_RESET_LEFT, "true"))
        return SyncLiteSubscriptionResponse(status=status(Code.OK))

    def _known(self, ask: Ask, group: str) -> GrpcClient:
        """Raises Refused."""
        known = self._clients.find(ask.caller)
        if known is None or not known.is_lite or known.group != group:
            raise Refused(
                Code.UNRECOGNIZED_CLIENT_TYPE, f"expected a client with settings of a lite consumer of {group}"
            )
        return known

    def _lite_client(self, known: GrpcClient) -> LiteClient:
        """What a client has subscribed to; nothing yet, if it was one of another group."""
        key = known.caller.key
        if key in self._lite and self._lite[key].group != known.group:
            self._gone(known)
        if key not in self._lite:
            self._lite[key] = LiteClient(known)
        return self._lite[key]

    def _over_quota(self, group: str) -> Refused:
        return Refused(
            Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
            f"expected at most {self._clients.lite_quota(group)} lite topics of a client of {group}, and "
            f"{self._parts.config.max_lite_subscription_count} of all clients",
        )

    def _has(self, group: str, attribute: str, value: str) -> bool:
        found = self._parts.groups.get(group)
        return found is not None and found.attributes.get(attribute) == value

    async def _add(self, ask: Ask, client: LiteClient, queues: set[str]) -> None:
        quota, all_most = self._clients.lite_quota(client.group), self._parts.config.max_lite_subscription_count
        is_exclusive = self._has(client.group, LITE_MODEL, LITE_EXCLUSIVE)
        for left in range(len(queues), 0, -1):
            if len(client.queues) + left > quota or self._count + left > all_most:
                raise self._over_quota(client.group)
            name = queues.pop()
            if name in client.queues:  # By another call, which was served in between.
                continue
            if is_exclusive and not self._claim(client, name, takes=ask.request.action == LiteAction.PARTIAL_ADD):
                continue
            client.queues.add(name)
            self._count += 1
            self._subscribers.setdefault(name, {})[client] = None
            self._start_at(client.group, name, ask.request.offset_option)
            client.ready[name] = None
            client.wake()
            await self._give_way(ask, client)

    async def _drop(self, ask: Ask, client: LiteClient, queues: set[str], *, resets: bool = False) -> None:
        for name in queues:
            if name in client.queues:  # Otherwise another call has dropped it in between.
                self._remove(client, {name})
                if resets:
                    self._move(client.group, name, 0)
            await self._give_way(ask, client)

    async def _give_way(self, ask: Ask, client: LiteClient) -> None:
        """Let others be served. Raises Refused when the client is gone afterwards."""
        await ask.give_way()
        if self._lite.get(ask.caller.key) is not client:
            raise self._has_ended()

    def _has_ended(self) -> Refused:
        return Refused(Code.UNRECOGNIZED_CLIENT_TYPE, "the client has ended")

    def _claim(self, client: LiteClient, name: str, *, takes: bool) -> bool:
        """Whether a lite topic is the client's, in a group that gives each to one client. `takes`: it asks for this
        one; otherwise it has sent all that it wants, and may have lost this one meanwhile.
        """
        others = [
            each
            for each in self._subscribers.get(name, ())
            if each.group == client.group and self._lite.get(each.owner.caller.key) is each  # One that ended has none.
        ]
        if others and not takes:
            client.lost(name)
            return False
        for other in others:
            self._remove(other, {name})
            other.lost(name)
        if others and self._has(client.group, LITE_RESET_TAKEN, "true"):
            self._move(client.group, name, 0)
        return True

    def _move(self, group: str, name: str, offset: int) -> None:
        """Where a group goes on in a lite topic; messages that it has now do not hold others back."""
        if self._parts.offsets.query(group, name, 0) < 0:
            self._parts.offsets.commit(group, name, 0, offset)
        else:
            self._parts.offsets.reset(group, name, 0, offset)
            self._is_ready(name)

    def _start_at(self, group: str, name: str, start: Any) -> None:
        """Move a group's offset in a lite topic, if the subscription has a start position."""
        kind, store = start.WhichOneof("offset_type"), self._parts.store
        if kind is None or (kind == "policy" and start.policy == OffsetRule.LAST):
            return
        low, end = max(0, store.min_offset(name, 0)), max(0, store.max_offset(name, 0))
        if kind == "policy":
            wanted = low if start.policy == OffsetRule.MIN else end
        elif kind == "offset":
            wanted = start.offset
        elif kind == "tail_n":
            wanted = end - start.tail_n
        else:
            wanted = store.offset_at(name, 0, start.timestamp) if end > low else end
        self._move(group, name, min(max(low, wanted), end))

    def _remove(self, client: LiteClient, queues: set[str]) -> None:
        for name in tuple(queues):
            client.queues.discard(name)
            client.ready.pop(name, None)
            client.blocked.pop(name, None)
            self._count -= 1
            own = self._subscribers[name]
            del own[client]
            if not own:
                del self._subscribers[name]

    def _gone(self, gone: GrpcClient) -> None:
        """A client has ended: what it had goes to others."""
        client = self._lite.pop(gone.caller.key, None)
        if client is None:
            return
        client.wake()
        self._leave(client, self._parts.clock.now_ms() + RELEASE_MS)

    def _leave(self, client: LiteClient, due_ms: int) -> None:
        """Give what an ended client had to others, in slices: it may be very much."""
        until_s = monotonic() + SLICE_S
        while client.queues:
            name = client.queues.pop()
            for other in self._subscribers[name]:
                if other.group == client.group and name in other.blocked:
                    other.blocked[name] = min(other.blocked[name], due_ms)
            self._remove(client, {name})
            if monotonic() >= until_s:
                self._parts.server.give_way(partial(self._leave, client, due_ms))
                return

    # Events.

    def _arrived(self, topic: str, _queue_id: int, _next_offset: int, _request: DispatchRequest | None) -> None:
        """On the dispatch thread."""
        if topic not in self._subscribers:
            return
        with self._board_lock:
            is_first = not self._board
            self._board.add(topic)
        if is_first:
            self._parts.server.call_threadsafe(self._take_board)

    def _take_board(self) -> None:
        with self._board_lock:
            board, self._board = self._board, set()
        for name in board:
            self._is_ready(name)

    def _is_ready(self, name: str) -> None:
        for client in self._subscribers.get(name, ()):
            client.ready[name] = None
            client.wake()

    def _look(self) -> None:
        now_ms = self._parts.clock.now_ms()
        for client in self._lite.values():
            if client.waits and (due_ms := client.due_ms()) is not None and due_ms <= now_ms:
                client.wake()

    # Receiving.

    async def pop(self, ask: Ask, topic: str, fields: dict[str, str], poll_s: float) -> list[LiteMessage]:
        """Messages of a client's lite topics; it waits for some. `fields` are those of a pop."""
        self.require_parent(topic)
        self._clients.require_bound(fields["consumerGroup"], topic)
        client = self._lite_client(self._known(ask, fields["consumerGroup"]))
        over_ms = self._parts.clock.now_ms() + int(poll_s * 1000)
        while True:
            found = await self._take(ask, client, fields)
            if found or self._parts.clock.now_ms() >= over_ms:
                return found
            if client.ready:
                continue  # A message arrived in a queue that was looked at before this call gave way.
            if len(client.waits) >= self._parts.config.pop_polling_size:
                raise Refused(Code.TOO_MANY_REQUESTS, "too many receives of this client are waiting")
            pending = Pending()
            client.waits[pending] = over_ms
            try:
                await pending
            finally:
                client.waits.pop(pending, None)
            if self._lite.get(ask.caller.key) is not client:
                return []

    async def _take(self, ask: Ask, client: LiteClient, fields: dict[str, str]) -> list[LiteMessage]:
        now_ms, room = self._parts.clock.now_ms(), int(fields["maxMsgNums"])
        for name in [name for name, due_ms in client.blocked.items() if due_ms <= now_ms]:
            del client.blocked[name]
            client.ready[name] = None
        if attempt := fields.get("attemptId"):  # The answer to this very receive may have been lost.
            client.ready |= dict.fromkeys(each for each in client.blocked if self._is_of_attempt(client, each, attempt))
        found: list[LiteMessage] = []
        for name in tuple(client.ready):
            try:
                await ask.give_way()
            except GeneratorExit:  # The client is gone.
                self.give_back(self.given(client.group, found))
                raise
            if len(found) >= room or self._lite.get(ask.caller.key) is not client:
                break
            if name not in client.ready:  # Another receive has looked at it meanwhile.
                continue
            del client.ready[name]
            wanted = {**fields, "topic": name, "queueId": "0", "order": "true", "maxMsgNums": str(room - len(found))}
            got = self._read(ask.caller, name, wanted)
            if got.count:
                client.blocked[name] = got.pop_ms + int(fields["invisibleTime"])
                found += self._popped(name, got, int(fields["invisibleTime"]))
            elif got.look_again_ms is not None:
                client.blocked[name] = got.look_again_ms
            elif got.met_cold:
                client.blocked[name] = got.pop_ms + COLD_MS
        return found

    def _is_of_attempt(self, client: LiteClient, name: str, attempt: str) -> bool:
        key, orders = (name, client.group, 0), self._pops.orders
        return orders.blocked_until_ms(key) is not None and orders.blocked_until_ms(key, attempt) is None

    def _read(self, caller: Caller, name: str, fields: dict[str, str]) -> PopResult:
        request = LocalRequest(caller)
        command = RemotingCommand(RequestCode.POP_MESSAGE, ext=fields)
        command.account = caller.account
        pop = Pop(request, command, self._parts.clock.now_ms())
        return whole(self._pops.reader.gather(pop, TopicConfig(name, 1, 1), may_wait=False))

    def _popped(self, name: str, found: PopResult, invisible_ms: int) -> list[LiteMessage]:
        counts = {}
        for text in found.order_counts:
            _, key, count = text.split(" ")
            if key.startswith("qo"):
                counts[int(key.partition("%")[2])] = int(count)
        offsets = [int(each) for each in found.offsets[0].split(" ")[2].split(",")]
        broker, made = self._parts.config.broker_name, []
        for message, offset in zip(decode_records(b"".join(found.data)), offsets, strict=True):
            receipt = Receipt(offsets[0], found.pop_ms, invisible_ms, ORDERED_QUEUE, MARK_NORMAL, broker, 0, offset)
            made.append(LiteMessage(name, message, receipt, 1 + counts.get(offset, 0)))
        return made

    # Ends.

    def acknowledge(self, group: str, name: str, receipt: Receipt) -> None:
        """A message is consumed. Raises Refused for a receipt that is outdated, or of another lite topic."""
        if not self._pops.orders.was_given((name, group, 0), receipt.offset, receipt.pop_ms):
            raise Refused(Code.INVALID_RECEIPT_HANDLE, "the receipt handle is outdated, or not of this lite topic")
        popped = PoppedMessage(group, name, 0, receipt.start_offset, receipt.pop_ms)
        self._pops.acks.finish(popped, [receipt.offset], ORDERED_QUEUE, receipt.pop_ms + receipt.invisible_ms)
        self._freed(group, name)

    def change_time(self, group: str, name: str, receipt: Receipt, invisible_ms: int, *, suspended: bool) -> bool:
        """A message is to come again after a time. False when its receipt is outdated."""
        visible_ms = self._parts.clock.now_ms() + invisible_ms
        key = (name, group, 0)
        if not self._pops.orders.change_time(key, receipt.offset, receipt.pop_ms, visible_ms, counts=not suspended):
            return False
        self._freed(group, name)
        return True

    def given(self, group: str, popped: list[LiteMessage]) -> Given:
        """What a receive has popped."""
        pops = (PoppedMessage(group, each.queue, 0, each.receipt.start_offset, each.receipt.pop_ms) for each in popped)
        return Given(frozenset(pops), is_ordered=True)

    def give_back(self, given: Given) -> None:
        """A client did not get what it popped."""
        self._leases.give_back(given)
        for popped in given.popped:
            self._freed(popped.group, popped.topic)

    def _freed(self, group: str, name: str) -> None:
        """Others may get more of a queue, or know when they may."""
        until_ms = self._pops.orders.blocked_until_ms((name, group, 0))
        if until_ms is None:
            self._is_ready(name)
            return
        for client in self._subscribers.get(name, ()):
            if client.group == group:
                client.blocked[name] = until_ms


def light_queue(topic: str, lite_topic: str) -> str:
    """The light queue of a lite topic. Raises Refused."""
    if (problem := lite_topic_problem(lite_topic)) is not None:
        raise Refused(Code.ILLEGAL_LITE_TOPIC, problem)
    return lite_queue(topic, lite_topic)
