"""Every call of gRPC at a running broker: with fields and bytes that make no sense, and by peers who have no right.

Each is answered with a code of the protocol or ended with an outcome of gRPC; none is a mistake of a handler's own; the
broker serves others on. With accounts, a call that is not signed, signed with another secret, or signed by an account
without rights is refused, and nothing is changed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from broker.brokers import SMALL, broker_config
from broker.grpc.grpc_peer import STREAMS, GrpcPeer
from campaign.hostile.mutator import Mutator
from campaign.hostile.requests import VALUES
from campaign.part import Finding, Outcome
from servers.loopback import free_ports
from tiermq.broker.broker import Broker
from tiermq.grpc.messages import METHODS, SERVICE, Code, MessageType, answer_class, request_class
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.permissions import AccessTable

PROMISE = "any call of gRPC is answered with a known code, and none is a mistake of a handler's own"
ACCESS = "a peer without a right is refused by every call of gRPC, and changes nothing"
SETTINGS: dict[str, Any] = {
    "recall_message_enable": True,
    "grpc_client_consumer_min_long_polling_timeout_millis": 0,
    "min_invisible_time_mills_for_recv": 1,
}
WAIT_S = 2.0
"""A receive whose fields became a long wait is given up by its caller."""
NUMBERS = (0, 1, -1, 99, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63))
ACCOUNTS = """
[[accounts]]
accessKey = "root"
secretKey = "the secret of root"
admin = true
[[accounts]]
accessKey = "without"
secretKey = "the secret of without"
"""
ROOT, GUESS, WITHOUT = ("root", "the secret of root"), ("root", "a guess"), ("without", "the secret of without")
UNARY = tuple(name for name in METHODS if name != "Telemetry")


@dataclass(frozen=True)
class GrpcCallsPart:
    """See the module."""

    calls: int = 300
    rounds: int = 50
    name: str = "grpc-calls"
    title: str = "every call of gRPC, with senseless fields and bytes, unsigned, forged and powerless"

    def missing(self) -> str:
        return ""

    def round(self, seed: int, scratch: Path) -> Outcome:
        return self._run(seed, scratch, range(self.calls), with_access=True)

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        """The one call that is enough alone, if there is one."""
        for number in range(self.calls):
            found = self._run(seed, scratch / str(number), range(number, number + 1), with_access=False).findings
            if found:
                return found[0]
        return None

    def _run(self, seed: int, scratch: Path, numbers: range, *, with_access: bool) -> Outcome:
        outcome = Outcome()
        scratch.mkdir(parents=True, exist_ok=True)
        wrong = [(PROMISE, each) for each in self._confused(seed, scratch, numbers, outcome)]
        if with_access:
            wrong += [(ACCESS, each) for each in _without_right(scratch, outcome)]
        outcome.counts.update(rounds=1)
        outcome.findings += [Finding(promise, each, seed) for promise, each in wrong]
        return outcome

    def _confused(self, seed: int, scratch: Path, numbers: range, outcome: Outcome) -> Iterator[str]:
        [port] = free_ports(1)
        config = broker_config(grpc_server_port=port, **SETTINGS)
        with Broker.open(scratch / "store", config=config, **SMALL) as broker, GrpcPeer(port) as peer:
            seeds, seen = _sound(broker, peer), set()
            for number in numbers:
                chance = random.Random(f"{seed}/{number}")
                method = chance.choice(UNARY)
                data = _confuse(chance, method, seeds)
                before = broker.parts.server.handler_errors
                found = _code_of(peer, method, data)
                seen.add((method, found))
                if broker.parts.server.handler_errors != before:
                    yield f"{method}: a mistake of the handler ({found}): {data[:300].hex()}"
                elif isinstance(found, int) and found not in set(Code):
                    yield f"{method}: answered with {found}, which is no code: {data[:300].hex()}"
            if (last := peer.send(peer.message("T2")).status).code != Code.OK:
                yield f"afterwards a send is answered with {last.code}: {last.message}"
            outcome.counts.update(calls=len(numbers), distinct_answers=len(seen))


def _sound(broker: Broker, peer: GrpcPeer) -> dict[str, Any]:
    """A call of each kind that is served, with a receipt and ids of this broker."""
    broker.parts.topics.put(TopicConfig("T", 2, 2))
    broker.parts.groups.find_or_make("G")
    peer.settle(client_type=3, subscription={"group": {"name": "G"}, "subscriptions": [{"topic": {"name": "T"}}]})
    peer.send(peer.message("T", b"one", tag="a", keys=["k"]), peer.message("T", b"two", message_group="g"))
    half = peer.send(peer.message("T", message_type=MessageType.TRANSACTION)).entries[0]
    late = peer.send(peer.message("T", delivery_s=broker.parts.clock.now_ms() // 1000 + 3_600)).entries[0]
    broker.parts.local.dispatch_now()
    given = peer.receive("T")[0].system_properties
    place: dict[str, Any] = {"topic": {"name": "T"}, "group": {"name": "G"}}
    queue: dict[str, Any] = {"message_queue": {"topic": {"name": "T"}}}
    endpoints = {"scheme": 1, "addresses": [{"host": "127.0.0.1", "port": 1}]}
    held = {**place, "receipt_handle": given.receipt_handle, "message_id": given.message_id}
    fields: dict[str, dict[str, Any]] = {
        "QueryRoute": {"topic": place["topic"], "endpoints": endpoints},
        "QueryAssignment": {**place, "endpoints": endpoints},
        "Heartbeat": {"group": place["group"], "client_type": 3},
        "NotifyClientTermination": {"group": place["group"]},
        "SendMessage": {"messages": [peer.message("T", b"x", tag="a", keys=["k"], message_group="g", priority=1)]},
        "EndTransaction": {"topic": place["topic"], "transaction_id": half.transaction_id, "resolution": 1},
        "RecallMessage": {"topic": place["topic"], "recall_handle": late.recall_handle},
        "ReceiveMessage": {"group": place["group"], **queue, "batch_size": 32, "invisible_duration": {"seconds": 60}},
        "AckMessage": {**place, "entries": [{"receipt_handle": given.receipt_handle, "message_id": "m"}]},
        "ChangeInvisibleDuration": {**held, "invisible_duration": {"seconds": 30}},
        "ForwardMessageToDeadLetterQueue": held,
        "SyncLiteSubscription": {**place, "lite_topic_set": ["ann"]},
        "PullMessage": {"group": place["group"], **queue, "batch_size": 32},
        "UpdateOffset": {"group": place["group"], **queue, "offset": 1},
        "GetOffset": {"group": place["group"], **queue},
        "QueryOffset": {**queue, "query_offset_policy": 2, "timestamp": {"seconds": 1}},
    }
    return {name: request_class(name)(**fields.get(name, {})) for name in UNARY}


def _confuse(chance: random.Random, method: str, seeds: dict[str, Any]) -> bytes:
    made = request_class(method)()
    made.CopyFrom(seeds[method])
    if chance.random() < 0.7:
        _change(chance, made, chance.choice((0.05, 0.15, 0.4)))
    data: bytes = made.SerializeToString()
    others = [each.SerializeToString() for each in seeds.values()]
    return Mutator(chance).mutated(data, others) if chance.random() < 0.2 else data


def _change(chance: random.Random, message: Any, share: float) -> None:
    """Give a share of the fields, set or not, values that make no sense; messages that are set keep most of theirs."""
    for field in message.DESCRIPTOR.fields:
        kind, own = field.cpp_type, getattr(message, field.name)
        is_message = kind == field.CPPTYPE_MESSAGE
        if chance.random() > share and not (is_message and _is_set(message, field)):
            continue
        if is_message and field.message_type.GetOptions().map_entry:
            own[chance.choice(VALUES)] = chance.choice(VALUES)
        elif is_message:
            _change(chance, (chance.choice(own) if len(own) else own.add()) if field.is_repeated else own, share)
        elif field.is_repeated:
            own.append(_senseless(chance, field, None))
        else:
            setattr(message, field.name, _senseless(chance, field, own))


def _is_set(message: Any, field: Any) -> bool:
    return len(getattr(message, field.name)) > 0 if field.is_repeated else message.HasField(field.name)


def _senseless(chance: random.Random, field: Any, own: Any) -> Any:
    """A value of a field's type."""
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        text = chance.choice(VALUES)
        return text.encode() if field.type == field.TYPE_BYTES else text
    if kind == field.CPPTYPE_BOOL:
        return not own
    if kind == field.CPPTYPE_ENUM:
        return chance.choice((0, 1, 2, 3, 4, 5, 6, 77))
    bits = 31 if kind == field.CPPTYPE_INT32 else 63
    return chance.choice([each for each in NUMBERS if -(1 << bits) <= each < 1 << bits])


def _code_of(peer: GrpcPeer, method: str, data: bytes) -> int | str:
    """What a call is answered with: a code of the protocol, or the outcome by which gRPC ended it."""
    is_stream = method in STREAMS
    stub = (peer.channel.unary_stream if is_stream else peer.channel.unary_unary)(SERVICE + method, None, None)
    try:
        found = stub(data, metadata=peer.metadata, timeout=WAIT_S if is_stream else 60.0)
        return int(answer_class(method).FromString(next(iter(found)) if is_stream else found).status.code)
    except grpc.RpcError as error:
        return str(error.code())


def _without_right(scratch: Path, outcome: Outcome) -> Iterator[str]:
    accounts = scratch / "acl.toml"
    accounts.write_text(ACCOUNTS)
    [port] = free_ports(1)
    config = broker_config(grpc_server_port=port, **SETTINGS)
    acl = AccessTable.load(accounts)
    with (
        Broker.open(scratch / "guarded", config=config, acl=acl, **SMALL) as broker,
        GrpcPeer(port, account=ROOT, client_id="same") as root,
    ):
        seeds = _sound(broker, root)
        before = _state(broker)
        for account, wanted in ((None, Code.UNAUTHORIZED), (GUESS, Code.UNAUTHORIZED), (WITHOUT, Code.FORBIDDEN)):
            with GrpcPeer(port, account=account, client_id="same") as peer:
                for method, request in seeds.items():
                    found = _code_of(peer, method, request.SerializeToString())
                    outcome.counts["calls"] += 1
                    # A client without settings is not known, also with an account.
                    unknown = wanted == Code.FORBIDDEN and found == Code.UNRECOGNIZED_CLIENT_TYPE
                    if found != wanted and not unknown:
                        yield f"{method} by {account and account[0]}: expected {int(wanted)}, found {found}"
        if (after := _state(broker)) != before:
            yield f"changed: {before} into {after}"
        if (last := root.send(root.message("T")).status).code != Code.OK:
            yield f"root is answered with {last.code}: {last.message}"


def _state(broker: Broker) -> tuple[Any, ...]:
    parts = broker.parts
    ends = [parts.local.max_offset("T", queue) for queue in range(2)]
    return sorted(parts.topics.table), sorted(parts.groups.table), ends, parts.offsets.query("G", "T", 0)
