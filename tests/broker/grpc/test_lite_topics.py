"""Lite topics by gRPC: many small queues behind one topic, each consumed in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from broker.brokers import broker_config, running
from broker.consuming import Peer
from broker.grpc.grpc_peer import GrpcPeer
from servers.loopback import free_ports
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.broker.grpc import grpc_service, lite_calls
from tiermq.broker.grpc.grpc_clients import LITE_QUOTA
from tiermq.grpc.messages import Code, LiteAction, MessageType, OffsetRule, message_class, request_class
from tiermq.message.topic_name import LITE_TOPIC_CHARACTERS_MAX, lite_parent
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import RequestCode
from waiting import until

PARENT = "Sessions"
LITE = {"enable_lmq": True, "enable_multi_dispatch": True}
SIMPLE, PUSH = 6, 5


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(tmp_path: Path, clock: ManualClock) -> Iterator[Broker]:
    [port] = free_ports(1)
    config = broker_config(grpc_server_port=port, lite_ttl_check_interval=10)
    with running(tmp_path, config=config, clock=clock, **LITE) as made:
        made.parts.topics.put(TopicConfig(PARENT, 4, 4, attributes={"message.type": "LITE"}))
        bind(made, "G")
        yield made


def bind(broker: Broker, group: str, **attributes: str) -> None:
    """Make a group of lite consumers, as mqadmin's updateSubGroup does; `attributes` in place of dots with _."""
    changes = {"lite_bind_topic": PARENT, **attributes}
    with Peer(broker) as peer:
        signed = {f"+{name.replace('_', '.')}": value for name, value in changes.items()}
        body = {"groupName": group, "attributes": signed}
        assert peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).code == 0


class LitePeer(GrpcPeer):
    """A lite consumer, with its settings."""

    def __init__(self, broker: Broker, *, kind: int = SIMPLE, group: str = "G") -> None:
        super().__init__(broker.config.grpc_server_port)
        self.group = group
        entry = {"topic": {"name": PARENT}, "expression": {"expression": "*"}}
        subscription = {"group": {"name": group}, "subscriptions": [entry]}
        self.settings = self.settle(client_type=kind, subscription=subscription).settings

    def want(self, *names: str, action: LiteAction = LiteAction.PARTIAL_ADD, start: Any = None) -> Code:
        fields: dict[str, Any] = {} if start is None else {"offset_option": start}
        answer = self.call(
            "SyncLiteSubscription",
            action=action,
            topic={"name": PARENT},
            group={"name": self.group},
            lite_topic_set=names,
            **fields,
        )
        return Code(answer.status.code)

    def got(self, **fields: Any) -> list[Any]:
        return self.receive(PARENT, self.group, **fields)

    def done(self, *messages: Any) -> list[int]:
        entries = [
            {
                "message_id": each.system_properties.message_id,
                "receipt_handle": each.system_properties.receipt_handle,
                "lite_topic": each.system_properties.lite_topic,
            }
            for each in messages
        ]
        answer = self.call("AckMessage", group={"name": self.group}, topic={"name": PARENT}, entries=entries)
        return [each.status.code for each in answer.entries]

    def later(self, message: Any, *, suspend: bool = False) -> Any:
        return self.call(
            "ChangeInvisibleDuration",
            group={"name": self.group},
            topic={"name": PARENT},
            receipt_handle=message.system_properties.receipt_handle,
            invisible_duration={"seconds": 30},
            lite_topic=message.system_properties.lite_topic,
            suspend=suspend,
        )


@pytest.fixture
def consumer(broker: Broker) -> Iterator[LitePeer]:
    with LitePeer(broker) as made:
        yield made


def send(peer: GrpcPeer, lite: str, *bodies: str) -> None:
    for body in bodies:
        answer = peer.send(peer.message(PARENT, body.encode(), message_type=MessageType.LITE, lite_topic=lite))
        assert answer.status.code == Code.OK, answer.status.message


def bodies(messages: list[Any]) -> list[str]:
    return [each.body.decode() for each in messages]


def test_a_consumer_gets_the_lite_topics_that_it_has_subscribed_to(broker: Broker, consumer: LitePeer) -> None:
    send(consumer, "ann", "a1", "a2")
    send(consumer, "bob", "b1")
    broker.parts.local.dispatch_now()
    assert consumer.want("ann") == Code.OK
    found = consumer.got()
    assert bodies(found) == ["a1", "a2"]
    assert {each.system_properties.lite_topic for each in found} == {"ann"}
    assert {each.system_properties.message_type for each in found} == {MessageType.LITE}
    assert consumer.done(*found) == [Code.OK, Code.OK]
    assert broker.parts.offsets.query("G", "%LMQ%$Sessions$ann", 0) == 2
    consumer.want("bob")
    assert bodies(consumer.got()) == ["b1"]


def test_a_receive_waits_and_a_message_of_a_lite_topic_wakes_it(broker: Broker, consumer: LitePeer) -> None:
    consumer.want("ann", "bob")
    found: list[str] = []
    with GrpcPeer(broker.config.grpc_server_port) as producer:
        waiting = threading.Thread(target=lambda: found.extend(bodies(consumer.got(poll_s=20))))
        waiting.start()
        send(producer, "carl", "for another")
        send(producer, "bob", "now")
        waiting.join()
    assert found == ["now"]


def test_a_lite_topic_is_held_back_until_its_messages_are_acknowledged(clock: ManualClock, consumer: LitePeer) -> None:
    consumer.want("ann", "bob")
    send(consumer, "ann", "a1")
    [first] = consumer.got()
    send(consumer, "ann", "a2")
    send(consumer, "bob", "b1")
    assert bodies(consumer.got()) == ["b1"]  # Others are not held back.
    consumer.done(first)
    assert bodies(consumer.got()) == ["a2"]
    clock.advance_ms(61_000)
    [again] = [each for each in consumer.got() if each.body == b"a2"]
    assert again.system_properties.delivery_attempt == 2


def test_more_time_keeps_a_message_back_and_suspended_ones_count_no_attempt(
    clock: ManualClock, consumer: LitePeer
) -> None:
    consumer.want("ann")
    send(consumer, "ann", "a1")
    [found] = consumer.got(seconds=600)
    changed = consumer.later(found, suspend=True)
    assert changed.status.code == Code.OK
    clock.advance_ms(31_000)
    [again] = consumer.got(seconds=600)
    assert again.system_properties.delivery_attempt == 1
    consumer.later(again)
    clock.advance_ms(31_000)
    [third] = consumer.got()
    assert third.system_properties.delivery_attempt == 2
    assert consumer.later(again).status.code == Code.INVALID_RECEIPT_HANDLE
    assert consumer.done(third) == [Code.OK]


def test_two_consumers_of_a_group_share_lite_topics_and_one_that_ends_leaves_its_messages(
    broker: Broker, clock: ManualClock, consumer: LitePeer
) -> None:
    consumer.want("ann", "bob")
    with LitePeer(broker, kind=PUSH) as other:
        other.want("ann", "bob")
        send(other, "ann", "a1")
        assert bodies(other.got(auto_renew=True)) == ["a1"]
        send(other, "bob", "b1")
        assert bodies(consumer.got()) == ["b1"]
        other.call("NotifyClientTermination", group={"name": "G"})
    clock.advance_ms(2_000)
    [again] = consumer.got()
    assert (again.body, again.system_properties.delivery_attempt) == (b"a1", 2)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ({"policy": OffsetRule.MIN}, ["0", "1", "2", "3"]),
        ({"policy": OffsetRule.MAX}, ["4"]),
        ({"offset": 2}, ["2", "3"]),
        ({"tail_n": 1}, ["3"]),
    ],
)
def test_a_subscription_says_where_it_begins(
    broker: Broker, consumer: LitePeer, start: dict[str, int], expected: list[str]
) -> None:
    send(consumer, "ann", "0", "1", "2", "3")
    broker.parts.local.dispatch_now()
    assert consumer.want("ann", start=message_class("OffsetOption")(**start)) == Code.OK
    if "4" in expected:
        send(consumer, "ann", "4")
    assert bodies(consumer.got()) == expected


def test_a_whole_subscription_replaces_what_was_wanted_before(consumer: LitePeer) -> None:
    consumer.want("ann", "bob")
    consumer.want("carl", "bob", action=LiteAction.COMPLETE_ADD)
    send(consumer, "ann", "a1")
    send(consumer, "carl", "c1")
    assert bodies(consumer.got()) == ["c1"]
    consumer.want("carl", action=LiteAction.PARTIAL_REMOVE)
    send(consumer, "carl", "c2")
    send(consumer, "bob", "b1")
    assert bodies(consumer.got()) == ["b1"]


def test_a_message_that_fails_too_often_becomes_a_dead_letter(broker: Broker, consumer: LitePeer) -> None:
    send(consumer, "ann", "a1", "a2")
    broker.parts.local.dispatch_now()
    consumer.want("ann")
    found = consumer.got()
    answer = consumer.call(
        "ForwardMessageToDeadLetterQueue",
        group={"name": "G"},
        topic={"name": PARENT},
        receipt_handle=found[0].system_properties.receipt_handle,
        message_id=found[0].system_properties.message_id,
        lite_topic="ann",
    )
    assert answer.status.code == Code.OK
    until(lambda: broker.parts.store.max_offset("%DLQ%G", 0) == 1)
    consumer.done(found[1])
    assert broker.parts.offsets.query("G", "%LMQ%$Sessions$ann", 0) == 2


@pytest.mark.parametrize("named", ["ann", ""], ids=["named", "left-out"])
def test_a_client_that_does_not_name_the_lite_topic_is_served_by_the_record_s(
    broker: Broker, clock: ManualClock, named: str
) -> None:
    """Java's client 5.1.0 names it when it acknowledges, and not when a message failed."""
    with LitePeer(broker, kind=PUSH) as consumer:
        consumer.want("ann")
        send(consumer, "ann", "a1", "a2", "a3")
        broker.parts.local.dispatch_now()
        found = consumer.got()
        place: dict[str, Any] = {"group": {"name": "G"}, "topic": {"name": PARENT}}
        handles = [each.system_properties.receipt_handle for each in found]
        dead = consumer.call(
            "ForwardMessageToDeadLetterQueue", **place, receipt_handle=handles[0], message_id="m", lite_topic=named
        )
        assert dead.status.code == Code.OK
        entries = [{"message_id": "m", "receipt_handle": handles[1], "lite_topic": named}]
        assert consumer.call("AckMessage", **place, entries=entries).status.code == Code.OK
        until(lambda: broker.parts.offsets.query("G", "%LMQ%$Sessions$ann", 0) == 2)
        later = consumer.call(
            "ChangeInvisibleDuration",
            **place,
            receipt_handle=handles[2],
            invisible_duration={"seconds": 30},
            lite_topic=named,
        )
        assert later.status.code == Code.OK
        clock.advance_ms(31_000)
        assert [(each.body, each.system_properties.delivery_attempt) for each in consumer.got()] == [(b"a3", 2)]


def test_the_same_attempt_gets_what_its_answer_may_have_lost(consumer: LitePeer) -> None:
    consumer.want("ann", "bob")
    send(consumer, "ann", "a1")
    assert bodies(consumer.got(attempt_id="one")) == ["a1"]
    assert bodies(consumer.got(attempt_id="one")) == ["a1"]
    send(consumer, "bob", "b1")
    assert bodies(consumer.got(attempt_id="two")) == ["b1"]


def test_names_and_numbers_of_lite_topics_have_bounds(consumer: LitePeer) -> None:
    subscription = consumer.settings.subscription
    assert subscription.max_lite_topic_size == LITE_TOPIC_CHARACTERS_MAX
    quota = subscription.lite_subscription_quota
    assert consumer.want(*(f"l{number}" for number in range(quota))) == Code.OK
    assert consumer.want("one-more") == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    for name in ("", "a b", "../up", "x" * (LITE_TOPIC_CHARACTERS_MAX + 1)):
        assert consumer.want(name) == Code.ILLEGAL_LITE_TOPIC
        message = consumer.message(PARENT, b"x", message_type=MessageType.LITE)
        message.system_properties.lite_topic = name
        assert consumer.send(message).status.code == Code.ILLEGAL_LITE_TOPIC


def test_lite_messages_need_a_topic_of_that_type_and_the_settings(tmp_path: Path, broker: Broker) -> None:
    with GrpcPeer(broker.config.grpc_server_port) as peer:
        message = peer.message("Other", b"x", message_type=MessageType.LITE, lite_topic="ann")
        assert peer.send(message).status.code == Code.TOPIC_NOT_FOUND
        broker.parts.topics.put(TopicConfig("Other", 4, 4))
        assert peer.send(message).status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    [port] = free_ports(1)
    with running(tmp_path / "plain", config=broker_config(grpc_server_port=port)) as plain, GrpcPeer(port) as peer:
        plain.parts.topics.put(TopicConfig(PARENT, 4, 4, attributes={"message.type": "LITE"}))
        answer = peer.send(peer.message(PARENT, b"x", message_type=MessageType.LITE, lite_topic="ann"))
        assert answer.status.code == Code.UNSUPPORTED
        assert "enableLmq" in answer.status.message


def test_messages_of_lite_topics_are_in_their_parent_for_remoting_clients(broker: Broker, consumer: LitePeer) -> None:
    send(consumer, "ann", "a1")
    broker.parts.local.dispatch_now()
    queues = [broker.parts.store.get(PARENT, queue, 0).messages for queue in range(4)]
    [message] = [each for found in queues for each in found]
    assert message.body == b"a1"
    assert message.properties["__LITE_TOPIC"] == "ann"


def test_lite_topics_without_number_let_others_be_served_in_between(consumer: LitePeer, given_way: list[int]) -> None:
    assert consumer.want(*(f"l{each}" for each in range(300))) == Code.OK
    assert len(given_way) >= 300
    given_way.clear()
    consumer.send(consumer.message(PARENT, b"found", lite_topic="l299"))
    assert [each.body for each in consumer.got()] == [b"found"]
    assert len(given_way) >= 300
    assert consumer.want(*(f"m{each}" for each in range(LITE_QUOTA))) == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert consumer.want(*("x" * 100 for _ in range(2_500))) == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED


def test_a_message_of_a_lite_topic_that_arrives_behind_a_look_at_it_is_got(
    broker: Broker, consumer: LitePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands: nothing else ends the wait of the receive."""
    *names, last = [f"l{each}" for each in range(10)]
    for name in (*names, last):  # One after the other, to be looked at in this order.
        assert consumer.want(name) == Code.OK
    monkeypatch.setattr(grpc_service, "SLICE_S", 0.0)
    server, resumes = broker.parts.server, list[Callable[[], None]]()
    give_way = server.give_way
    bind(broker, "other")

    def held(resume: Callable[[], None]) -> None:
        resumes.append(resume)
        if len(resumes) <= len(names):  # Then the last one is left.
            give_way(resume)

    with LitePeer(broker, group="other") as producer, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(server, "give_way", held)
        receive = pool.submit(consumer.got)
        until(lambda: len(resumes) > len(names))
        monkeypatch.setattr(server, "give_way", give_way)
        for name in names:
            send(producer, name, name)
        until(lambda: all(broker.parts.store.max_offset(f"%LMQ%${PARENT}${name}", 0) == 1 for name in names))
        broker.parts.local.dispatch_now()  # Behind it, arrivals are known.
        server.call_threadsafe(give_way, resumes[-1])
        assert sorted(bodies(receive.result())) == names


# Groups.


def test_a_lite_consumer_needs_a_group_that_is_bound_to_its_topic(broker: Broker) -> None:
    broker.parts.topics.put(TopicConfig("Other", 4, 4, attributes={"message.type": "LITE"}))
    bind(broker, "elsewhere", lite_bind_topic="Other")
    for group, words in (
        ("unbound", "regular group cannot use LITE mode: unbound"),
        ("elsewhere", "is expected to bind topic Other, but actual is Sessions"),
    ):
        with pytest.raises(grpc.RpcError) as refused, LitePeer(broker, group=group):
            pass
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert words in str(refused.value.details())


def test_a_lite_group_has_no_other_consumers(broker: Broker) -> None:
    entry = {"topic": {"name": PARENT}, "expression": {"expression": "*"}}
    with GrpcPeer(broker.config.grpc_server_port) as peer, pytest.raises(grpc.RpcError, match="must use LITE mode"):
        peer.settle(client_type=3, subscription={"group": {"name": "G"}, "subscriptions": [entry]})


def test_a_group_that_is_bound_elsewhere_meanwhile_gets_nothing_more(broker: Broker, consumer: LitePeer) -> None:
    bind(broker, "G", lite_bind_topic="Other")
    assert consumer.want("ann") == Code.ILLEGAL_TOPIC
    answers = consumer.call(
        "ReceiveMessage",
        group={"name": "G"},
        message_queue={"topic": {"name": PARENT}, "id": -1},
        batch_size=1,
        invisible_duration={"seconds": 60},
    )
    assert [each.status.code for each in answers if each.HasField("status")] == [Code.ILLEGAL_TOPIC]


def test_a_group_says_how_many_lite_topics_a_client_may_want(broker: Broker) -> None:
    bind(broker, "few", lite_sub_client_quota="2")
    with LitePeer(broker, group="few") as peer:
        assert peer.settings.subscription.lite_subscription_quota == 2
        assert peer.want("ann", "bob") == Code.OK
        assert peer.want("carl") == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        assert peer.want("carl", action=LiteAction.COMPLETE_ADD) == Code.OK


def test_subscriptions_of_all_clients_have_a_bound(tmp_path: Path) -> None:
    [port] = free_ports(1)
    config = broker_config(grpc_server_port=port, max_lite_subscription_count=3)
    with running(tmp_path, config=config, **LITE) as made:
        made.parts.topics.put(TopicConfig(PARENT, 4, 4, attributes={"message.type": "LITE"}))
        bind(made, "G")
        with LitePeer(made) as one, LitePeer(made) as two:
            assert one.want("ann", "bob") == Code.OK
            assert two.want("ann", "bob") == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
            one.call("NotifyClientTermination", group={"name": "G"})
            assert two.want("ann", "bob", "carl") == Code.OK


def test_long_lists_of_lite_topics_are_taken_and_dropped_while_others_are_served(
    broker: Broker, given_way: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lite_calls, "SLICE_S", 0.0)
    names = [f"l{each}" for each in range(200)]

    def count() -> str:
        return next(
            each for each in broker.render_metrics().splitlines() if each.startswith("tiermq_lite_subscriptions ")
        )

    with LitePeer(broker) as peer:
        given_way.clear()
        assert peer.want(*names) == Code.OK
        assert len(given_way) >= 2 * len(names)  # Each is checked, and each is subscribed to.
        given_way.clear()
        assert peer.want("l0", action=LiteAction.COMPLETE_ADD) == Code.OK
        assert len(given_way) >= len(names)
        assert count().endswith(" 1")
        assert peer.want(*names) == Code.OK
        given_way.clear()
        assert peer.want(*names, action=LiteAction.PARTIAL_REMOVE) == Code.OK
        assert len(given_way) >= 2 * len(names)
        assert peer.want(*names) == Code.OK
        given_way.clear()
        peer.call("NotifyClientTermination", group={"name": "G"})
        until(lambda: count().endswith(" 0"))
        assert len(given_way) >= len(names) - 1


# Exclusive subscriptions.


def lost(peer: LitePeer) -> str:
    """The lite topic that a client is told to drop; it waits for the command."""
    command = next(peer.telemetry)
    assert command.WhichOneof("command") == "notify_unsubscribe_lite_command"
    return str(command.notify_unsubscribe_lite_command.lite_topic)


def test_an_exclusive_lite_topic_goes_to_the_client_that_asks_for_it_last(broker: Broker, consumer: LitePeer) -> None:
    bind(broker, "G", lite_sub_model="Exclusive")
    consumer.want("ann", "bob")
    with LitePeer(broker) as other:
        assert other.want("ann") == Code.OK
        assert lost(consumer) == "ann"
        send(other, "ann", "a1")
        send(other, "bob", "b1")
        assert bodies(consumer.got()) == ["b1"]
        assert bodies(other.got()) == ["a1"]


def test_a_client_that_has_not_heard_that_it_lost_a_lite_topic_hears_it_again(
    broker: Broker, consumer: LitePeer
) -> None:
    bind(broker, "G", lite_sub_model="Exclusive")
    consumer.want("ann", "bob")
    with LitePeer(broker) as other:
        other.want("ann")
        assert lost(consumer) == "ann"
        assert (
            consumer.want("ann", "bob", action=LiteAction.COMPLETE_ADD) == Code.OK
        )  # All that it wants, as each minute.
        assert lost(consumer) == "ann"
        send(other, "ann", "a1")
        assert bodies(other.got()) == ["a1"]
        other.call("NotifyClientTermination", group={"name": "G"})
    assert consumer.want("ann", "bob", action=LiteAction.COMPLETE_ADD) == Code.OK  # Nobody has it now.
    send(consumer, "bob", "b1")
    assert bodies(consumer.got()) == ["b1"]


def test_a_client_that_has_gone_to_another_group_begins_anew(broker: Broker, consumer: LitePeer) -> None:
    bind(broker, "G2")
    assert consumer.want("ann") == Code.OK
    entry = {"topic": {"name": PARENT}, "expression": {"expression": "*"}}
    assert consumer.settle(client_type=SIMPLE, subscription={"group": {"name": "G2"}, "subscriptions": [entry]})
    assert consumer.want("ann") == Code.UNRECOGNIZED_CLIENT_TYPE
    consumer.group = "G2"
    assert consumer.want("bob") == Code.OK
    send(consumer, "ann", "a1")
    send(consumer, "bob", "b1")
    assert bodies(consumer.got()) == ["b1"]
    consumer.group = "G"
    assert consumer.got() == []


def test_groups_take_no_exclusive_lite_topics_from_each_other(broker: Broker, consumer: LitePeer) -> None:
    bind(broker, "G", lite_sub_model="Exclusive")
    bind(broker, "H", lite_sub_model="Exclusive")
    consumer.want("ann")
    with LitePeer(broker, group="H") as other:
        other.want("ann")
        send(other, "ann", "a1")
        assert bodies(other.got()) == bodies(consumer.got()) == ["a1"]


@pytest.mark.parametrize(("value", "expected"), [("true", ["a1", "a2"]), ("false", ["a2"])])
def test_a_lite_topic_that_is_taken_over_may_begin_again(
    broker: Broker, consumer: LitePeer, value: str, expected: list[str]
) -> None:
    bind(broker, "G", lite_sub_model="Exclusive", lite_sub_reset_offset_exclusive=value)
    consumer.want("ann")
    send(consumer, "ann", "a1")
    consumer.done(*consumer.got())
    send(consumer, "ann", "a2")
    with LitePeer(broker) as other:
        other.want("ann")
        assert bodies(other.got()) == expected


@pytest.mark.parametrize(("value", "expected"), [("true", ["a1", "a2"]), ("false", ["a2"])])
def test_a_lite_topic_that_was_left_may_begin_again(
    broker: Broker, consumer: LitePeer, value: str, expected: list[str]
) -> None:
    bind(broker, "G", lite_sub_reset_offset_unsubscribe=value)
    consumer.want("ann")
    send(consumer, "ann", "a1")
    consumer.done(*consumer.got())
    consumer.want("ann", action=LiteAction.PARTIAL_REMOVE)
    send(consumer, "ann", "a2")
    broker.parts.local.dispatch_now()
    consumer.want("ann")
    assert bodies(consumer.got()) == expected


# Expiration.


def expire_after(broker: Broker, minutes: int) -> None:
    attributes = {"message.type": "LITE", "lite.topic.expiration": str(minutes)}
    broker.parts.topics.put(TopicConfig(PARENT, 4, 4, attributes=attributes))


def light_queues(broker: Broker, parent: str = PARENT) -> set[str]:
    return {name.rpartition("$")[2] for name in broker.parts.local.topics() if lite_parent(name) == parent}


def test_a_lite_topic_expires_when_nothing_was_sent_to_it_for_as_long_as_its_parent_says(
    broker: Broker, clock: ManualClock, consumer: LitePeer
) -> None:
    expire_after(broker, 20)
    consumer.want("ann", "bob")
    send(consumer, "ann", "a1")
    consumer.done(*consumer.got())
    clock.advance_ms(19 * 60_000)
    send(consumer, "bob", "b1")
    broker.parts.local.dispatch_now()
    assert light_queues(broker) == {"ann", "bob"}
    clock.advance_ms(2 * 60_000)
    until(lambda: light_queues(broker) == {"bob"})
    until(lambda: broker.parts.offsets.query("G", "%LMQ%$Sessions$ann", 0) == -1)
    assert bodies(consumer.got()) == ["b1"]
    send(consumer, "ann", "a2")  # It begins again, and the client that wants it gets what is sent.
    assert bodies(consumer.got()) == ["a2"]
    [message] = broker.parts.local.get("%LMQ%$Sessions$ann", 0, 0).messages
    assert message.body == b"a2"


def test_lite_topics_of_late_messages_stay_and_those_of_a_parent_without_expiration(
    broker: Broker, clock: ManualClock, consumer: LitePeer
) -> None:
    broker.parts.topics.put(TopicConfig("Kept", 4, 4, attributes={"message.type": "LITE"}))
    assert consumer.send(consumer.message("Kept", b"k", lite_topic="kept")).status.code == Code.OK
    send(consumer, "old", "o1")
    broker.parts.local.dispatch_now()
    clock.advance_ms(16 * 60_000)
    send(consumer, "ann", "a1")
    broker.parts.local.dispatch_now()
    clock.advance_ms(14 * 60_000)
    expire_after(broker, 1)
    until(lambda: light_queues(broker) == {"ann"})  # Within 15 minutes of a message nothing expires.
    assert light_queues(broker, "Kept") == {"kept"}


def test_lite_topics_go_with_their_parent(broker: Broker, consumer: LitePeer) -> None:
    consumer.want("ann")
    send(consumer, "ann", "a1")
    consumer.done(*consumer.got())
    with Peer(broker) as peer:
        assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=PARENT).code == 0
    assert light_queues(broker) == set()
    assert broker.parts.offsets.query("G", "%LMQ%$Sessions$ann", 0) == -1


def test_a_client_whose_settings_the_broker_does_not_know_gets_nothing_of_the_parent_topic(
    broker: Broker, consumer: LitePeer
) -> None:
    """As after a restart of the broker: the client sends its settings again."""
    consumer.want("ann")
    send(consumer, "bob", "for others")
    send(consumer, "ann", "a1")
    broker.parts.local.dispatch_now()
    [found] = consumer.got()
    place: dict[str, Any] = {"group": {"name": "G"}, "topic": {"name": PARENT}}
    handle = {"receipt_handle": found.system_properties.receipt_handle, "lite_topic": "ann"}
    with GrpcPeer(broker.config.grpc_server_port) as unknown:
        received = request_class("ReceiveMessage")(
            group={"name": "G"}, message_queue={"topic": {"name": PARENT}, "id": -1}, batch_size=8, auto_renew=True
        )
        answers = [
            unknown.call("ReceiveMessage", received)[0],
            unknown.call("QueryAssignment", **place),
            unknown.call("AckMessage", **place, entries=[{"message_id": "m", **handle}]),
            unknown.call("ChangeInvisibleDuration", **place, **handle, invisible_duration={"seconds": 30}),
            unknown.call("ForwardMessageToDeadLetterQueue", **place, **handle, message_id="m"),
        ]
    assert [each.status.code for each in answers] == [Code.UNRECOGNIZED_CLIENT_TYPE] * 5
    assert broker.parts.offsets.query("G", PARENT, 0) < 0
    assert consumer.done(found) == [Code.OK]


def test_a_receipt_of_another_lite_topic_acknowledges_nothing_and_says_so(
    broker: Broker, clock: ManualClock, consumer: LitePeer
) -> None:
    consumer.want("ann", "bob")
    send(consumer, "ann", "a1")
    [found] = consumer.got()
    place: dict[str, Any] = {"group": {"name": "G"}, "topic": {"name": PARENT}}
    entries = [{"message_id": "m", "receipt_handle": found.system_properties.receipt_handle, "lite_topic": "bob"}]
    answer = consumer.call("AckMessage", **place, entries=entries)
    assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
    clock.advance_ms(61_000)
    [again] = consumer.got()
    assert consumer.done(found) == [Code.INVALID_RECEIPT_HANDLE]
    assert consumer.done(again) == [Code.OK]
    assert consumer.done(again) == [Code.OK], "its first answer may have been lost"


def test_a_lite_message_is_forwarded_once(broker: Broker, consumer: LitePeer) -> None:
    consumer.want("ann")
    send(consumer, "ann", "a1")
    [found] = consumer.got()
    fields: dict[str, Any] = {
        "group": {"name": "G"},
        "topic": {"name": PARENT},
        "receipt_handle": found.system_properties.receipt_handle,
        "message_id": found.system_properties.message_id,
        "lite_topic": "ann",
    }
    codes = [consumer.call("ForwardMessageToDeadLetterQueue", **fields).status.code for _ in range(3)]
    assert codes == [Code.OK, Code.INVALID_RECEIPT_HANDLE, Code.INVALID_RECEIPT_HANDLE]
    broker.parts.local.dispatch_now()
    assert broker.parts.store.max_offset("%DLQ%G", 0) == 1
