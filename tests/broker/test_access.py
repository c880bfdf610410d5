"""Who may do what on a broker with accounts: every code is tried by accounts that lack the right, over the wire."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import running, send_command, stored
from broker.consuming import on_loop, part, until
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.broker.delivery.end_transaction_processor import EndTransactionProcessor
from tiermq.message.properties import decode_properties
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.access import ADMINISTRATOR, ANY_ACCOUNT
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.json_dialect import decode_object, encode_body
from tiermq.remoting.permissions import AccessTable, Credentials

ACCOUNTS = """
[[accounts]]
accessKey = "root"
secretKey = "the secret of root"
admin = true
[[accounts]]
accessKey = "nobody"
secretKey = "the secret of nobody"
[[accounts]]
accessKey = "writer"
secretKey = "the secret of writer"
defaultTopicPerm = "DENY"
defaultGroupPerm = "SUB"
topicPerms = ["open=PUB"]
[[accounts]]
accessKey = "second"
secretKey = "the secret of second"
topicPerms = ["open=PUB"]
[[accounts]]
accessKey = "reader"
secretKey = "the secret of reader"
defaultTopicPerm = "PUB|SUB"
defaultGroupPerm = "SUB"
topicPerms = ["guarded=DENY"]
[[accounts]]
accessKey = "other"
secretKey = "the secret of other"
defaultTopicPerm = "PUB|SUB"
defaultGroupPerm = "SUB"
groupPerms = ["victim=DENY"]
[[accounts]]
accessKey = "denied"
secretKey = "the secret of denied"
defaultTopicPerm = "PUB|SUB"
defaultGroupPerm = "SUB"
topicPerms = ["secret=DENY"]
"""
WHO = {
    name: Credentials(name, f"the secret of {name}")
    for name in ("root", "nobody", "writer", "reader", "second", "other", "denied")
}
NO_PERMISSION = ResponseCode.NO_PERMISSION
HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01HALF\x02"
FIELDS = {
    **dict.fromkeys(("topic", "b"), "guarded"),
    **dict.fromkeys(("consumerGroup", "group", "groupName"), "CG"),
    **dict.fromkeys(("producerGroup", "a"), "PG"),
    **dict.fromkeys(("queueId", "e", "queueOffset", "offset", "f", "g", "h", "beginTimestamp"), "0"),
    "c": "TBW102", "d": "1", "defaultTopic": "TBW102", "defaultTopicQueueNums": "1", "sysFlag": "0", "flag": "0",
    "bornTimestamp": "0", "commitOffset": "1", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
    "delayLevel": "1",
    "topicFilterType": "SINGLE_TAG", "suspendTimeoutMillis": "1", "maxMsgNums": "1", "timestamp": "0", "key": "KEY1",
    "maxNum": "1", "endTimestamp": "9999999999999", "commitOrRollback": "8", "commitLogOffset": "0", "clientID": "c",
    "tranStateTableOffset": "0", "srcGroup": "CG", "destGroup": "CG2", "invisibleTime": "1000", "pollTime": "0",
    "initMode": "0", "extraInfo": "0 0 1000 0 0 b1 0 0", "recallHandle": "x",
}  # fmt: skip
QUEUE = {"topic": "guarded", "brokerName": "b1", "queueId": 0}
BODIES: dict[int, Any] = {
    RequestCode.HEART_BEAT: {
        "clientID": "c",
        "consumerDataSet": [{"groupName": "CG", "subscriptionDataSet": [{"topic": "guarded", "subString": "*"}]}],
    },
    RequestCode.LOCK_BATCH_MQ: {"consumerGroup": "CG", "clientId": "c", "mqSet": [QUEUE]},
    RequestCode.UNLOCK_BATCH_MQ: {"consumerGroup": "CG", "clientId": "c", "mqSet": [QUEUE]},
    RequestCode.BATCH_ACK_MESSAGE: {"acks": [{"c": "CG", "t": "guarded", "q": 0, "so": 0, "pt": 1, "b": "AQ=="}]},
    RequestCode.CHECK_CLIENT_CONFIG: {"group": "CG", "subscriptionData": {"topic": "guarded"}},
    RequestCode.QUERY_ASSIGNMENT: {"topic": "guarded", "consumerGroup": "CG", "clientId": "c"},
}


@contextmanager
def guarded(path: Path, **settings: Any) -> Iterator[Broker]:
    """A broker with accounts. Its log begins with half a message for the topic `guarded`; a whole one follows."""
    accounts = path / "acl.toml"
    accounts.write_text(ACCOUNTS)
    with running(path, acl=AccessTable.load(accounts), **settings) as broker:
        broker.parts.topics.put_all([TopicConfig("guarded", 1, 1), TopicConfig("open", 1, 1)])
        with signed(broker, "root") as root:
            for properties in (HALF, "KEYS\x01KEY1\x02UNIQ_KEY\x01KEY1\x02"):
                assert root.request(send_command("guarded", b"secret", properties=properties)).code == 0
        yield broker


def signed(broker: Broker, who: str, header_type: int = HeaderType.JSON) -> BlockingClient:
    return BlockingClient("127.0.0.1", broker.port, credentials=WHO[who], timeout_s=30.0, header_type=header_type)


def request(code: int, **fields: str) -> RemotingCommand:
    body = encode_body(BODIES[code]) if code in BODIES else b"secret"
    return RemotingCommand(code, ext={**FIELDS, **fields}, body=body)


def state_of(broker: Broker) -> tuple[Any, ...]:
    parts = broker.parts
    return (
        sorted(parts.topics.table),
        sorted(parts.groups.table),
        parts.offsets.snapshot(),
        parts.local.max_physical_offset,
        parts.config.to_properties(),
        sorted(parts.clients.producer_groups),
        sorted(parts.clients.consumer_groups),
    )


@pytest.mark.parametrize("who", ["nobody", "writer"])
@pytest.mark.parametrize("header_type", list(HeaderType))
def test_without_permission_no_code_is_served_and_nothing_changes(
    tmp_path: Path, who: str, header_type: HeaderType
) -> None:
    with guarded(tmp_path) as broker, signed(broker, who, header_type) as client:
        before = state_of(broker)
        declared = broker.parts.server.declared
        answered = {
            code: client.request(request(code))
            for code, (access, _) in sorted(declared.items())
            if access is not ANY_ACCOUNT or who == "nobody"
        }
        # The group is everybody's who may read for any; what is told of it alone is not the topic's.
        of_the_group = {38, 203, 208, 343, 352, 35} if who == "writer" else set()
        assert [
            code for code, each in answered.items() if each.code != NO_PERMISSION and code not in of_the_group
        ] == []
        assert not any(b"secret" in bytes(each.body) for each in answered.values())
        assert not any(b'"guarded"' in bytes(each.body) for each in answered.values())
        if who == "nobody":
            assert state_of(broker) == before
        assert len(answered) > 50


@pytest.mark.parametrize("code", [RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.BATCH_ACK_MESSAGE])
def test_what_reaches_nothing_is_refused_to_an_account_without_permissions(tmp_path: Path, code: int) -> None:
    """A producer's heartbeat names no topic, an end of a client no group, a list of acknowledgements may be empty."""
    body = {"clientID": "c", "producerDataSet": [{"groupName": f"PG{n}"} for n in range(3)], "acks": []}
    ask = RemotingCommand(code, ext={"clientID": "c", "producerGroup": "PG0"}, body=encode_body(body))
    with guarded(tmp_path) as broker, signed(broker, "nobody") as absent, signed(broker, "writer") as writer:
        before = state_of(broker)
        assert (answer := absent.request(ask)).code == NO_PERMISSION, answer
        assert state_of(broker) == before
        assert writer.request(ask).code == ResponseCode.SUCCESS, "a permission for one topic is enough"


def test_only_lists_of_names_are_open_to_any_account(tmp_path: Path) -> None:
    with guarded(tmp_path) as broker:
        declared = broker.parts.server.declared
        assert [code for code, (access, _) in declared.items() if access is ANY_ACCOUNT] == [305]
        changing = {17, 25, 200, 207, 215, 222, 306, 309, 314, 316, 329, 401}
        assert all(declared[code][0] is ADMINISTRATOR for code in changing)


def test_a_record_is_given_to_those_who_may_read_its_topic(tmp_path: Path) -> None:
    with guarded(tmp_path) as broker, signed(broker, "reader") as reader, signed(broker, "root") as root:
        (message,) = stored(broker, "guarded")
        for offset in (0, message.physical_offset):  # The half message, and the whole one.
            for code in (RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.CONSUMER_SEND_MSG_BACK):
                answer = reader.request(request(code, offset=str(offset), originTopic="open"))
                assert (answer.code, bytes(answer.body)) == (NO_PERMISSION, b"")
        assert broker.parts.topics.get("%RETRY%CG") is None
        answer = root.request(request(RequestCode.VIEW_MESSAGE_BY_ID, offset=str(message.physical_offset)))
        assert b"secret" in bytes(answer.body)
        assert reader.request(send_command("open", b"for all")).code == 0
        (other,) = stored(broker, "open")
        view = request(RequestCode.VIEW_MESSAGE_BY_ID, offset=str(other.physical_offset))
        assert b"for all" in bytes(reader.request(view).body)
        back = request(RequestCode.CONSUMER_SEND_MSG_BACK, offset=str(other.physical_offset))
        assert reader.request(back).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("outcome", ["8", "12"])
def test_a_transaction_is_ended_by_those_who_may_send_to_its_topic(tmp_path: Path, outcome: str) -> None:
    with guarded(tmp_path) as broker:
        end = RemotingCommand(
            RequestCode.END_TRANSACTION,
            ext={
                "producerGroup": "PG",
                "tranStateTableOffset": "0",
                "commitLogOffset": "0",
                "commitOrRollback": outcome,
                "topic": "open",
            },
        )
        with signed(broker, "reader") as reader:
            assert reader.request(end).code == NO_PERMISSION
            del end.ext["topic"]
            assert reader.request(end).code == NO_PERMISSION
        with signed(broker, "root") as root:
            assert root.request(end).code == ResponseCode.SUCCESS, "nobody has ended it before"


def test_an_operator_s_signature_does_not_reach_the_client_that_is_asked(tmp_path: Path) -> None:
    beat = {"clientID": "c@1", "consumerDataSet": [{"groupName": "CG"}]}
    asks = {"consumerGroup": "CG", "clientId": "c@1", "jstackEnable": "false"}
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    with guarded(tmp_path) as broker, signed(broker, "root") as root, signed(broker, "reader") as consumer:
        consumer.on_request(code, lambda asked: asked.respond(body=encode_body(asked.ext)))
        assert consumer.request(RemotingCommand(RequestCode.HEART_BEAT, body=encode_body(beat))).code == 0
        answer = root.request(RemotingCommand(code, ext=asks))
    assert decode_object(answer.body) == asks


def test_properties_of_a_delayed_message_name_the_topic_that_was_checked(tmp_path: Path) -> None:
    """A client's own REAL_TOPIC counts for nothing, whatever brings the message to a topic later."""
    wishes = {"DELAY\x011\x02": "SCHEDULE_TOPIC_XXXX", "TIMER_DELAY_SEC\x015\x02": "rmq_sys_wheel_timer", HALF: "half"}
    with guarded(tmp_path) as broker, signed(broker, "reader") as reader:
        for wish, topic in wishes.items():
            properties = f"REAL_TOPIC\x01guarded\x02REAL_QID\x017\x02{wish}"
            assert reader.request(send_command("open", b"x", properties=properties)).code == ResponseCode.SUCCESS
            name = "RMQ_SYS_TRANS_HALF_TOPIC" if topic == "half" else topic
            found = decode_properties(stored(broker, name)[-1].encoded_properties)
            assert (found["REAL_TOPIC"], found["REAL_QID"]) == ("open", "0")


def test_a_producer_is_asked_about_messages_that_it_may_send(tmp_path: Path, manual_clock: ManualClock) -> None:
    """A question has the whole message in it: whoever calls itself a producer of the group must not read it so."""
    asked: dict[str, queue.Queue[RemotingCommand]] = {"reader": queue.Queue(), "root": queue.Queue()}
    beat = {"clientID": "p", "producerDataSet": [{"groupName": "PG"}]}
    with (
        guarded(tmp_path, clock=manual_clock) as broker,
        signed(broker, "reader") as reader,
        signed(broker, "root") as root,
    ):
        for name, client in (("reader", reader), ("root", root)):
            client.on_request(RequestCode.CHECK_TRANSACTION_STATE, asked[name].put)
            assert client.request(RemotingCommand(RequestCode.HEART_BEAT, body=encode_body(beat))).code == 0
        processor = part(broker, EndTransactionProcessor)

        def has_asked(count: int) -> bool:
            return bool(processor.check.asked_count > count)

        on_loop(broker, broker.parts.hooks.start_services)
        for _ in range(4):  # They would be asked in turn.
            count = processor.check.asked_count
            broker.parts.local.dispatch_now()
            manual_clock.advance_ms(60_000)
            processor.check.wake()
            until(broker, partial(has_asked, count))
            assert asked["root"].get(timeout=60).ext["tranStateTableOffset"]
        assert asked["reader"].empty()


def test_a_producer_without_sub_is_asked_about_its_own_messages_only(tmp_path: Path, manual_clock: ManualClock) -> None:
    """Who may only write a topic must not read it by calling itself a producer of another's group."""
    asked: dict[str, queue.Queue[RemotingCommand]] = {"writer": queue.Queue(), "second": queue.Queue()}
    beat = {"clientID": "p", "producerDataSet": [{"groupName": "PG"}]}
    with (
        guarded(tmp_path, clock=manual_clock) as broker,
        signed(broker, "writer") as writer,
        signed(broker, "second") as second,
    ):
        for name, client in (("second", second), ("writer", writer)):
            client.on_request(RequestCode.CHECK_TRANSACTION_STATE, asked[name].put)
            assert client.request(RemotingCommand(RequestCode.HEART_BEAT, body=encode_body(beat))).code == 0
        forged = HALF.replace("HALF", "H2") + "TIERMQ_SENDER\x01second\x02"
        assert writer.request(send_command("open", b"mine", properties=forged)).code == 0
        processor = part(broker, EndTransactionProcessor)

        def has_asked(count: int) -> bool:
            return bool(processor.check.asked_count > count)

        on_loop(broker, broker.parts.hooks.start_services)
        for _ in range(4):
            count = processor.check.asked_count
            broker.parts.local.dispatch_now()
            manual_clock.advance_ms(60_000)
            processor.check.wake()
            until(broker, partial(has_asked, count))
            question = asked["writer"].get(timeout=60)
        assert asked["second"].empty()
        end = {
            "producerGroup": "PG", "commitOrRollback": "8", "topic": "open", "msgId": question.ext["msgId"],
            **{name: question.ext[name] for name in ("transactionId", "tranStateTableOffset", "commitLogOffset")},
        }  # fmt: skip
        assert writer.request(RemotingCommand(RequestCode.END_TRANSACTION, ext=end)).code == 0
        (message,) = stored(broker, "open")
        assert "TIERMQ_SENDER" not in message.properties


def test_who_may_not_use_a_group_may_not_have_it_made_by_asking_for_it(tmp_path: Path) -> None:
    with guarded(tmp_path) as broker, signed(broker, "nobody") as client:
        asks = RemotingCommand(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ext={"group": "new"})
        assert client.request(asks).code == NO_PERMISSION
        assert broker.parts.groups.get("new") is None


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.HEART_BEAT, {"clientID": "c", "consumerDataSet": [7]}),
        (
            RequestCode.HEART_BEAT,
            {"clientID": "c", "consumerDataSet": [{"groupName": "CG", "subscriptionDataSet": "x"}]},
        ),
        (RequestCode.LOCK_BATCH_MQ, {"consumerGroup": "CG", "clientId": "c", "mqSet": {"topic": "guarded"}}),
        (RequestCode.BATCH_ACK_MESSAGE, {"acks": 1.5}),
    ],
)
def test_a_body_that_names_its_topics_in_no_way_is_refused_in_words(
    tmp_path: Path, code: RequestCode, body: object
) -> None:
    with guarded(tmp_path) as broker, signed(broker, "reader") as client:
        answer = client.request(RemotingCommand(code, body=encode_body(body)))
        assert (answer.code, "expected" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)


def test_a_light_queue_is_written_by_those_who_may(tmp_path: Path) -> None:
    """Also by a duplicate of the property, by a delayed message, and with an offset that the client made up."""
    settings = {"enable_lmq": True, "enable_multi_dispatch": True}
    with guarded(tmp_path, **settings) as broker, signed(broker, "writer") as writer, signed(broker, "root") as root:
        names = "INNER_MULTI_DISPATCH\x01%LMQ%secret\x02UNIQ_KEY\x01K\x02"
        for properties in (names, f"INNER_MULTI_DISPATCH\x01x\x02{names}", f"DELAY\x011\x02{names}"):
            for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_REPLY_MESSAGE_V2):
                forged = send_command("open", b"forged", properties=properties, code=code)
                assert writer.request(forged).code == NO_PERMISSION
        for properties in (names, f"DELAY\x011\x02{names}INNER_MULTI_QUEUE_OFFSET\x011000\x02", names):
            assert root.request(send_command("open", b"allowed", properties=properties)).code == 0
        broker.parts.local.dispatch_now()
        page = broker.store.get("%LMQ%secret", 0, 0, max_messages=32)
        assert [bytes(each.body) for each in page.messages] == [b"allowed", b"allowed"], "the delayed one is not due"


def test_a_retry_topic_that_may_hold_pop_s_copies_of_a_denied_topic_is_not_written(tmp_path: Path) -> None:
    with guarded(tmp_path) as broker, signed(broker, "denied") as denied:
        names = ("%RETRY%CG", "%RETRY%CG2_secret", "%RETRY%CG2+secret")
        broker.parts.topics.put_all([TopicConfig(name, 1, 1) for name in names])
        for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2):
            answers = [denied.request(send_command(name, b"x", code=code)).code for name in names]
            assert answers == [0, NO_PERMISSION, NO_PERMISSION]


def test_a_topic_that_is_denied_denies_its_lite_topics(tmp_path: Path) -> None:
    settings = {"enable_lmq": True, "enable_multi_dispatch": True}
    with guarded(tmp_path, **settings) as broker, signed(broker, "reader") as reader, signed(broker, "root") as root:
        forged = "INNER_MULTI_DISPATCH\x01%LMQ%${}$x\x02UNIQ_KEY\x01K\x02"
        for who, parent, code in ((reader, "guarded", NO_PERMISSION), (reader, "open", 0), (root, "guarded", 0)):
            assert who.request(send_command("open", b"x", properties=forged.format(parent))).code == code
        broker.parts.local.dispatch_now()
        assert broker.store.max_offset("%LMQ%$guarded$x", 0) == 1
        codes = (
            RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE,
            RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.QUERY_MESSAGE,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, RequestCode.QUERY_CONSUMER_OFFSET,
            RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.GET_EARLIEST_MSG_STORETIME,
        )  # fmt: skip
        for each in codes:
            answer = reader.request(request(each, topic="%LMQ%$guarded$x"))
            assert answer.code == NO_PERMISSION, each
            assert reader.request(request(each, topic="%LMQ%$open$x")).code != NO_PERMISSION, each


def test_dead_letters_of_a_group_are_written_by_those_who_may_use_it(tmp_path: Path) -> None:
    with guarded(tmp_path) as broker, signed(broker, "reader") as reader, signed(broker, "other") as other:
        broker.parts.topics.put_all([TopicConfig("%DLQ%victim", 1, 1)])
        assert other.request(send_command("%DLQ%victim", b"forged")).code == NO_PERMISSION
        assert reader.request(send_command("%DLQ%victim", b"by SUB of every group")).code == 0
