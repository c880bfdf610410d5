"""One request does not hold up everybody: what a peer may ask for is bounded, and what is long is done in turns."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.consuming import Peer, bodies_of, on_loop, part, running, until
from broker.floods import (
    FLOODS,
    LISTS,
    NAME_LISTS,
    NAMES,
    Body,
    acks,
    consumers,
    data_of,
    filter_servers,
    producers,
    queues,
    register,
    route,
    subscriptions,
)
from tiermq import Message
from tiermq.broker.broker import Broker
from tiermq.broker.group.group_table import SubscriptionGroup
from tiermq.broker.group.subscription import ExpressionCache
from tiermq.broker.pop.pop_reader import STEPS_MAX
from tiermq.broker.pull import long_polling, sql_filter
from tiermq.broker.pull.long_polling import weight_of
from tiermq.broker.pull.pull_processor import PullProcessor
from tiermq.broker.pull.sql_filter import parse_counted
from tiermq.broker.send import send_processor as sending
from tiermq.client import table_pages
from tiermq.errors import BadFrame, PeerGone, RemotingError
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.message.message_filter import TagCodeFilter
from tiermq.namesrv import route_table
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.access import ANY_ACCOUNT, declared_by
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.frame import SEND_CODES, decode_json_header
from tiermq.remoting.limits import INLINE_BODY_BYTES
from tiermq.store.reader import FILTER_STEPS_MAX


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("floods"), enable_property_filter=True) as made:
        yield made


@pytest.mark.parametrize(("code", "body", "most"), LISTS)
def test_lists_of_operators_are_taken_up_to_their_limits(
    broker: Broker, peer: Peer, code: int, body: Body, most: int
) -> None:
    answer = peer.ask(code, data_of(body(most + 1)))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert f"at most {most}" in (answer.remark or "")
    assert broker.parts.topics.get(f"t{most}") is None
    assert broker.parts.groups.get(f"g{most}") is None
    assert peer.ask(code, data_of(body(20))).code == 0


TABLES = {21: ("Topic", "topicConfigTable"), 201: ("Group", "subscriptionGroupTable")}


def page(peer: Peer, code: int, begin: int, most: int, version: object = None) -> tuple[dict[str, Any], int]:
    """The answer to a request for a part of a table, and how many entries it says there are."""
    noun, _ = TABLES[code]
    asked: dict[str, Any] = {f"{noun.lower()}Seq": begin, f"max{noun}Num": most}
    if version is not None:
        asked["dataVersion"] = json.dumps(version)
    answer = peer.ask(code, **asked)
    assert answer.code == 0
    return json.loads(bytes(answer.body)), int(answer.ext[f"total{noun}Num"])


@pytest.mark.parametrize("code", TABLES)
def test_a_table_is_given_in_parts_and_from_its_beginning_when_it_changed(
    broker: Broker, peer: Peer, code: int
) -> None:
    name = TABLES[code][1]
    broker.parts.topics.put_all([TopicConfig(f"part{each}") for each in range(9)])
    broker.parts.groups.put_all([SubscriptionGroup(f"part{each}") for each in range(9)])
    whole = json.loads(bytes(peer.ask(code).body))
    first, total = page(peer, code, 0, 4)
    version = first["dataVersion"]
    assert total == len(whole[name])
    parts = [page(peer, code, begin, 4, version)[0][name] for begin in range(0, total, 4)]
    assert {key: value for part in parts for key, value in part.items()} == whole[name]
    assert [len(part) for part in parts[:-1]] == [4] * (len(parts) - 1)
    assert page(peer, code, total, 4, version)[0][name] == {}
    broker.parts.topics.put(TopicConfig("part9"))
    broker.parts.groups.put(SubscriptionGroup("part9"))
    again, _ = page(peer, code, 4, 4, version)
    assert again[name] == parts[0]
    assert again["dataVersion"] != version


def test_a_table_that_no_frame_can_hold_is_refused_in_words_and_read_in_parts(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that gets a longer frame ends the connection, and knows no reason."""
    attributes = {f"a{each}": "x" * 900 for each in range(40)}
    named = [SubscriptionGroup(f"long{each}", attributes=attributes) for each in range(500)]
    broker.parts.groups.put_all(named)
    answer = peer.ask(201)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "more than a frame can have: ask for parts of it" in str(answer.remark)
    monkeypatch.setattr(table_pages, "PAGE_ENTRIES", 100)
    pages = table_pages.TablePages(201)
    asked = 0
    while not pages.is_whole:
        answer = peer.ask(201, **pages.fields)
        pages.take(answer.ext, bytes(answer.body))
        asked += 1
        if asked == 2:
            broker.parts.groups.put(SubscriptionGroup("made meanwhile"))
    found = json.loads(pages.body)["subscriptionGroupTable"]
    assert found == {name: each.to_json() for name, each in broker.parts.groups.table.items()}
    assert asked == 2 + (len(found) + 99) // 100
    for each in named:
        broker.parts.groups.delete(each.name)


def test_a_table_whose_pages_never_come_is_an_error() -> None:
    pages = table_pages.TablePages(21)
    with pytest.raises(RemotingError, match="expected 5 entries as announced, found a page without any"):
        pages.take({"totalTopicNum": "5"}, b'{"topicConfigTable":{},"dataVersion":{}}')


def test_all_groups_are_listed_as_they_are_one_by_one(broker: Broker, peer: Peer) -> None:
    odd = {"type": "EXPONENTIAL"}
    broker.parts.groups.put(SubscriptionGroup("odd", False, attributes={"a": 'q"'}, group_retry_policy=odd))
    reported = json.loads(bytes(peer.ask(201).body))["subscriptionGroupTable"]
    assert reported == {name: each.to_json() for name, each in broker.parts.groups.table.items()}
    assert all(list(each) == sorted(each) for each in reported.values())


@pytest.mark.parametrize("code", [21, 43, 201, 203, 204, 328])
def test_long_answers_are_made_in_the_pool(broker: Broker, code: int) -> None:
    assert code in broker.parts.server._blocking


@pytest.mark.parametrize(("code", "body"), FLOODS, ids=NAMES)
def test_a_list_beyond_what_clients_need_is_refused_in_words(broker: Broker, peer: Peer, code: int, body: Body) -> None:
    answer = peer.ask(code, data_of(body(200_000)))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "at most" in (answer.remark or "")
    assert broker.parts.server.handler_errors == 0
    assert not broker.parts.clients.consumer_groups


@pytest.mark.parametrize(("body", "most"), [(consumers, 2_000), (producers, 2_000), (subscriptions, 5_000)])
def test_a_heartbeat_is_taken_up_to_its_limit_and_not_beyond(peer: Peer, body: Body, most: int) -> None:
    assert peer.ask(34, json.dumps(body(most)).encode()).code == 0
    answer = peer.ask(34, json.dumps(body(most + 1)).encode())
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert str(most + 1) in (answer.remark or "")


def test_a_heartbeat_of_too_many_groups_of_both_kinds_makes_none_of_them(broker: Broker, peer: Peer) -> None:
    body = consumers(1_000) | {"producerDataSet": producers(1_001)["producerDataSet"]}
    answer = peer.ask(34, json.dumps(body).replace('"g', '"both').encode())  # Other tests have made some of g0, g1, …
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "2000 groups of a client" in (answer.remark or "")
    assert not broker.parts.clients.consumer_groups
    assert broker.parts.clients.producers("both0") is None
    assert "%RETRY%both0" not in broker.parts.topics.table


def test_a_client_does_not_collect_groups_by_many_heartbeats(broker: Broker, peer: Peer) -> None:
    for first in range(0, 2_000, 500):
        named = [{"groupName": f"p{each}"} for each in range(first, first + 500)]
        assert peer.ask(34, {"clientID": "c", "producerDataSet": named}).code == 0
    answer = peer.ask(34, {"clientID": "c", "producerDataSet": [{"groupName": "one-more"}]})
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert broker.parts.clients.producers("one-more") is None
    assert peer.ask(34, {"clientID": "c", "producerDataSet": [{"groupName": "p7"}]}).code == 0


def test_locks_and_acknowledgements_up_to_their_limits_are_served(peer: Peer) -> None:
    assert peer.ask(41, json.dumps(queues(10_000)).encode()).code == 0
    assert peer.ask(42, json.dumps(queues(10_000)).encode()).code == 0
    assert peer.ask(200151, json.dumps(acks(4_096)).encode()).code == 0


@pytest.mark.parametrize(("code", "body", "most"), [(41, queues, 10_000), (42, queues, 10_000), (200151, acks, 4_096)])
def test_one_lock_or_acknowledgement_more_is_refused_with_the_limit(
    peer: Peer, code: int, body: Body, most: int
) -> None:
    answer = peer.ask(code, json.dumps(body(most + 1)).encode())
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert str(most + 1) in (answer.remark or "")


def test_every_request_on_the_loop_refuses_a_long_body_or_parses_it_in_the_pool(
    broker: Broker, peer: Peer, name_server: NameServer, names: BlockingClient
) -> None:
    data = bytes(INLINE_BODY_BYTES + 1)
    for server, ask in ((broker.parts.server, peer.client.request), (name_server.server, names.request)):
        on_the_loop = {code for code, (_, in_pool) in server.declared.items() if not in_pool} - SEND_CODES
        known = {34, 41, 42, 46, 2001, 200151, 324, 325, 103, 217}
        for code in sorted(on_the_loop - known):
            answer = ask(RemotingCommand(code, body=data))
            assert answer.code == ResponseCode.INVALID_PARAMETER, (code, answer.remark)
            assert f"at most {INLINE_BODY_BYTES} bytes" in (answer.remark or "")


# Headers


@pytest.mark.parametrize("header_type", [0, 1])
@pytest.mark.parametrize(
    "fields", [{f"f{each}": "1" for each in range(5_000)}, {"subscription": "x" * 300_000}], ids=["fields", "bytes"]
)
def test_a_header_beyond_what_clients_send_ends_its_connection_unread(
    broker: Broker, header_type: int, fields: dict[str, Any]
) -> None:
    with Peer(broker, header_type=header_type) as peer, pytest.raises(PeerGone):
        peer.ask(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0, **fields)
    with Peer(broker, header_type=header_type) as peer:
        usual: dict[str, Any] = {f"f{each}": "1" for each in range(500)}
        assert peer.ask(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0, **usual).code == 0


@pytest.mark.parametrize("header_type", [0, 1])
def test_the_longest_properties_in_a_header_are_stored(broker: Broker, header_type: int) -> None:
    properties = "a\x01" + "\x03" * 30_600 + "\x02"
    send = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 3, "f": 0, "g": 1, "h": 0, "i": properties}
    with Peer(broker, header_type=header_type) as peer:
        assert peer.ask(310, b"body", **send).code == 0


def test_quotes_in_a_value_are_no_fields() -> None:
    text = json.dumps({f"name{each}": "\\" for each in range(3_000)})
    header = json.dumps({"code": 1, "extFields": {"properties": text}}).encode()
    assert decode_json_header(header).ext["properties"] == text
    hidden = b'{"code":1,"extFields":{' + b",".join(b'"%d\\\\":1' % each for each in range(3_000)) + b"}}"
    with pytest.raises(BadFrame, match="at most 512 fields"):
        decode_json_header(hidden)


# Expressions


@pytest.mark.parametrize("text", ["||".join(f"t{each}" for each in range(1_025)), "t" * 16_385], ids=["tags", "text"])
def test_an_expression_beyond_what_clients_need_is_refused_in_words(peer: Peer, text: str) -> None:
    peer.join()
    reported = peer.pull(0, sysFlag=4, subscription=text, expressionType="TAG")
    assert (reported.code, "at most" in (reported.remark or "")) == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, True)
    pop: dict[str, Any] = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": 0,
        "maxMsgNums": 1,
        "invisibleTime": 1_000,
        "pollTime": 0,
    }
    for code in (200050, 200054):
        reported = peer.ask(code, **pop, initMode=0, bornTime=0, exp=text, expType="TAG")
        assert (reported.code, "at most" in (reported.remark or "")) == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, True)
    reported = peer.join(expression=text)
    assert (reported.code, "at most" in (reported.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)


def test_an_expression_of_many_terms_is_refused_in_words(peer: Peer) -> None:
    peer.join()
    for count, code in ((256, ResponseCode.PULL_NOT_FOUND), (257, ResponseCode.SUBSCRIPTION_PARSE_FAILED)):
        text = " OR ".join(f"d = {each}" for each in range(count))
        reported = peer.pull(0, queueId=2, sysFlag=4, subscription=text, expressionType="SQL92")
        assert reported.code == code, reported.remark


def test_a_costly_expression_looks_at_few_messages_at_once_and_goes_on(tmp_path: Path) -> None:
    text = " OR ".join(f"d = {each}" for each in range(256))
    with running(tmp_path, enable_property_filter=True) as broker, Peer(broker) as peer:
        peer.join()
        for number in range(100):
            broker.parts.local.put(Message("T", b"%d" % number, 0, properties={"d": "9" if number == 99 else "999"}))
        broker.parts.local.dispatch_now()
        offset, pulls = 0, 0
        while not (found := peer.pull(offset, sysFlag=4, subscription=text, expressionType="SQL92")).body:
            assert found.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            after = int(found.ext["nextBeginOffset"])
            assert offset < after <= offset + FILTER_STEPS_MAX // 512
            offset, pulls = after, pulls + 1
        assert bodies_of(found) == ["99"]
        assert pulls == 99 // (FILTER_STEPS_MAX // 512)


def test_a_costly_pop_looks_at_few_messages_at_once_and_goes_on(tmp_path: Path) -> None:
    text = " OR ".join(f"d = {each}" for each in range(256))
    with running(tmp_path, enable_property_filter=True) as broker, Peer(broker) as peer:
        peer.join()
        for number in range(100):
            for queue_id in range(4):
                broker.parts.local.put(Message("T", b"%d" % number, queue_id, properties={"d": "999"}))
        broker.parts.local.dispatch_now()
        pop = {"consumerGroup": "G", "topic": "T", "queueId": -1, "maxMsgNums": 1, "invisibleTime": 1_000}
        asked: dict[str, Any] = {**pop, "pollTime": 0, "initMode": 0, "bornTime": 0, "exp": text, "expType": "SQL92"}
        seen = 0
        while seen < 400:
            assert peer.ask(200050, **asked).code == ResponseCode.POLLING_TIMEOUT
            after = sum(max(0, broker.parts.offsets.query("G", "T", each)) for each in range(4))
            assert seen < after <= seen + STEPS_MAX // 512 + FILTER_STEPS_MAX // 512
            seen = after


def test_a_batch_beyond_what_clients_send_is_refused_in_words(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.parts.local.dispatch_now()
    ends = broker.parts.local.max_offset("T", 3)
    send = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 3, "f": 0, "g": 1, "h": 0, "i": "", "m": "true"}
    for properties in ("", "UNIQ_KEY\x01k\x02"):  # The fast path takes the second one, but for its length.
        reported = peer.ask(320, encode_client_batch([BatchElement(0, b"x", b"")] * 8_193), **{**send, "i": properties})
        assert (reported.code, "at most 8192" in (reported.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
        broker.parts.local.dispatch_now()
        assert broker.parts.local.max_offset("T", 3) == ends
    monkeypatch.setattr(sending, "BATCH_ELEMENTS_MAX", 1_000)
    for count, code in ((1_000, 0), (1_001, ResponseCode.MESSAGE_ILLEGAL)):
        assert peer.ask(320, encode_client_batch([BatchElement(0, b"", b"")] * count), **send).code == code
    broker.parts.local.dispatch_now()
    assert broker.parts.local.max_offset("T", 3) == ends + 1_000


# What waits


def test_pulls_that_wait_share_their_filter(broker: Broker, peer: Peer) -> None:
    peer.join()
    text = "||".join(f"shared{each}" for each in range(1_000))
    polling = part(broker, PullProcessor).long_polling
    for _ in range(20):
        peer.pull_later(0, queueId=2, sysFlag=6, suspendTimeoutMillis=60_000, subscription=text)
    until(broker, lambda: polling.held == 20)
    (held,) = on_loop(broker, lambda: list(polling._connections.values()))
    assert len({id(each.message_filter) for each in held}) == 1
    peer.client.close()
    until(broker, lambda: polling.held == 0)
    assert polling.weight.bytes == 0


@pytest.mark.parametrize(("most", "held"), [("HELD_BYTES_MAX", 3), ("HELD_BYTES_PER_PEER_MAX", 3)])
def test_what_waits_is_weighed(broker: Broker, monkeypatch: pytest.MonkeyPatch, most: str, held: int) -> None:
    text = "||".join(f"t{each}" for each in range(1_000))
    command = RemotingCommand(11, ext={"subscription": text})
    one = weight_of(command, TagCodeFilter(text))
    assert one > 1_000 * 192
    monkeypatch.setattr(long_polling, most, held * one + one * 9 // 10)
    processor = part(broker, PullProcessor).long_polling
    fields = {"queueId": 2, "sysFlag": 6, "suspendTimeoutMillis": 60_000, "subscription": text}
    with Peer(broker) as peer:
        peer.join()
        waiting = [peer.pull_later(0, **fields) for _ in range(held)]
        assert peer.pull(0, **fields).code == ResponseCode.PULL_NOT_FOUND
        assert on_loop(broker, lambda: processor.held) == held
        assert not any(each.done() for each in waiting)
        pop = {"consumerGroup": "G", "topic": "T", "queueId": 2, "maxMsgNums": 1, "invisibleTime": 1_000}
        asked: dict[str, Any] = {**pop, "pollTime": 60_000, "initMode": 0, "bornTime": 0, "exp": text, "expType": "TAG"}
        pops = [peer.ask_later(200050, **asked) for _ in range(held)]
        assert peer.ask(200050, **asked).code == ResponseCode.POLLING_FULL
        assert not any(each.done() for each in pops)
    until(broker, lambda: processor.held == 0)


def test_what_is_long_lets_others_be_served_in_between(broker: Broker, peer: Peer) -> None:
    """Counted in turns of the loop, not in time: after a step that is as long as a turn, another is served."""
    server = broker.parts.server
    order: list[str] = []
    done = threading.Event()

    def steps(command: RemotingCommand) -> Any:
        for number in range(3):
            order.append(f"step {number}")
            until_s = server.loop.time() + 0.006
            while server.loop.time() < until_s:
                pass
            server.loop.call_soon(order.append, "another")
            yield
        done.set()
        return command.respond(remark="at last")

    def handler(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        return server.in_steps(connection, command, steps(command))

    on_loop(broker, server.register, 9999, handler, ANY_ACCOUNT)
    assert peer.ask(9999).remark == "at last"
    assert [each for each in order if each != "another"] == ["step 0", "step 1", "step 2"]
    assert order.index("another") < order.index("step 1")


def test_what_steps_raise_is_answered(broker: Broker, peer: Peer) -> None:
    def steps() -> Any:
        yield
        raise ValueError("broken")

    server = broker.parts.server
    errors = server.handler_errors
    handler = lambda connection, command: server.in_steps(connection, command, steps())  # noqa: E731
    on_loop(broker, server.register, 9998, handler, ANY_ACCOUNT)
    assert "ValueError" in (peer.ask(9998).remark or "")
    assert server.handler_errors == errors + 1
    server.handler_errors = errors


# Name servers


@pytest.fixture
def name_server() -> Iterator[NameServer]:
    server = NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def names(name_server: NameServer) -> Iterator[BlockingClient]:
    with BlockingClient("127.0.0.1", name_server.port, timeout_s=120) as client:
        yield client


def test_a_registration_of_many_topics_is_taken_whole(names: BlockingClient) -> None:
    assert names.request(register(3_500)).code == 0
    listed = json.loads(bytes(names.request(RemotingCommand(206)).body))["topicList"]
    assert len([each for each in listed if each.startswith("t")]) == 3_500
    assert names.request(register(3_500, 2, queue_count=7)).code == 0
    for topic in ("t0", "t3499"):
        route = json.loads(bytes(names.request(RemotingCommand(105, ext={"topic": topic})).body))
        assert route["queueDatas"][0]["readQueueNums"] == 7


def test_permissions_that_were_taken_away_stay_away_over_a_registration_of_many(names: BlockingClient) -> None:
    assert names.request(register(3_500)).code == 0
    assert names.request(RemotingCommand(205, ext={"brokerName": "b"})).code == 0
    assert names.request(register(3_500)).code == 0
    for topic in ("t0", "t3499"):
        route = json.loads(bytes(names.request(RemotingCommand(105, ext={"topic": topic})).body))
        assert route["queueDatas"][0]["perm"] == 4


def test_routes_and_key_values_are_bounded(names: BlockingClient) -> None:
    many = json.dumps({"queueDatas": [{"brokerName": f"b{each}"} for each in range(5_000)]}).encode()
    answer = names.request(RemotingCommand(217, ext={"topic": "T"}, body=many))
    assert "at most" in (answer.remark or "")
    answer = names.request(RemotingCommand(100, ext={"namespace": "n", "key": "k", "value": "v" * 70_000}))
    assert "at most" in (answer.remark or "")


@pytest.mark.parametrize("flood", [filter_servers, route])
def test_lists_of_a_name_server_are_taken_up_to_their_limits(
    names: BlockingClient, flood: Callable[[int], RemotingCommand]
) -> None:
    answer = names.request(flood(1_001))
    assert (answer.code != 0, "at most 1000" in (answer.remark or "")) == (True, True)
    assert names.request(flood(1_000)).code == 0


@pytest.mark.parametrize("code", NAME_LISTS)
def test_lists_of_a_name_server_are_made_in_the_pool_while_brokers_come_and_go(
    name_server: NameServer, names: BlockingClient, code: int
) -> None:
    """The loop goes on meanwhile, so the table changes under a list that is being made."""
    declared = {each.code: each for each, _ in declared_by(name_server.processor)}
    assert declared[code].in_pool
    leave = {"clusterName": "c", "brokerName": "b", "brokerId": "0", "brokerAddr": "127.0.0.1:1"}
    for turn in range(10):
        changes = [names.request_later(register(500, turn + 1), timeout_s=120)]
        changes.append(names.request_later(RemotingCommand(RequestCode.UNREGISTER_BROKER, ext=leave), timeout_s=120))
        with BlockingClient("127.0.0.1", name_server.port, timeout_s=120) as reader:
            answers = [reader.request(RemotingCommand(code, ext=NAME_LISTS[code])) for _ in range(10)]
        assert {each.code for each in answers} == {0}, [each.remark for each in answers]
        assert [each.result(120).code for each in changes] == [0, 0]


LONG_EXPRESSION = "a IN (" + ",".join(f"'{each:x}'" for each in range(2_000)) + ")"


@pytest.mark.parametrize(("end", "code"), [("", 0), (" AND", ResponseCode.SUBSCRIPTION_PARSE_FAILED)])
def test_a_long_expression_that_is_only_checked_is_compiled_in_the_pool(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch, end: str, code: int
) -> None:
    threads: list[str] = []

    def watched(expression: str) -> Any:
        threads.append(threading.current_thread().name)
        return parse_counted(expression)

    monkeypatch.setattr(sql_filter, "parse_counted", watched)
    # The process's own may have it from an earlier test.
    monkeypatch.setattr(sql_filter, "_sql_filter", ExpressionCache(sql_filter._sql_or_problem, lambda _made: 0))
    wanted = {"topic": "T", "subString": LONG_EXPRESSION + end, "expressionType": "SQL92"}
    body = data_of({"clientId": "c", "group": "G", "subscriptionData": wanted})
    assert len(body) < INLINE_BODY_BYTES
    assert peer.ask(46, body).code == code
    assert [each.startswith("remoting_") for each in threads] == [True]


def test_an_expression_that_a_pull_brings_is_not_kept_for_its_group(broker: Broker, peer: Peer) -> None:
    peer.join(group="own")
    fields = {"sysFlag": 4, "subscription": LONG_EXPRESSION, "expressionType": "SQL92"}
    assert peer.pull(0, consumerGroup="own", queueId=2, **fields).code == ResponseCode.PULL_NOT_FOUND
    admitted = part(broker, PullProcessor).admission.remembered["own", "T"]
    assert admitted.message_filter is None


def test_a_filter_looks_at_fewer_messages_when_they_are_long(tmp_path: Path) -> None:
    """By what is looked at, not by time: properties are looked for in every byte of them."""
    with running(tmp_path, enable_property_filter=True) as broker, Peer(broker) as peer:
        peer.join()
        for queue_id, count in ((0, 3_500), (1, 1)):
            properties = {f"p{number}": "v" for number in range(count)}
            for _ in range(100):
                broker.parts.local.put(Message("T", b"x", queue_id, properties=properties))
        broker.parts.local.dispatch_now()
        expression = " OR ".join(f"z{number} = 1" for number in range(50))
        fields = {"sysFlag": 4, "subscription": expression, "expressionType": "SQL92"}
        long, short = (peer.pull(0, queueId=queue_id, **fields) for queue_id in (0, 1))
        assert long.code == short.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert int(short.ext["nextBeginOffset"]) == 100
        assert 1 <= int(long.ext["nextBeginOffset"]) <= 25


@pytest.mark.parametrize(
    ("limit", "what", "more"),
    [
        ("BROKERS_MAX", "2 broker names", {"brokerName": "third", "brokerAddr": "127.0.0.1:3"}),
        ("ADDRESSES_MAX", "2 addresses of broker b", {"brokerId": "2", "brokerAddr": "127.0.0.1:3"}),
        ("BROKER_TOPICS_MAX", "2 topics of broker b", {"topics": "3"}),
        ("ROUTES_MAX", "4 topics of all brokers", {"topics": "3"}),
    ],
)
def test_registrations_are_bounded_and_known_brokers_renew_at_the_limits(
    names: BlockingClient, monkeypatch: pytest.MonkeyPatch, limit: str, what: str, more: dict[str, Any]
) -> None:
    known: list[dict[str, Any]] = [
        {},
        {"brokerName": "other", "brokerAddr": "127.0.0.1:2"},
        {"brokerId": "1", "brokerAddr": "127.0.0.1:4"},
    ]
    for each in known:
        assert names.request(register(2, **each)).code == 0
    monkeypatch.setattr(route_table, limit, int(what[0]))
    count = int(more.pop("topics", "2"))
    answer = names.request(register(count, 2, **more))
    assert (answer.code, f"at most {what}" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True), answer
    assert "Nothing was registered" in (answer.remark or "")
    assert names.request(RemotingCommand(105, ext={"topic": "t2"})).code == ResponseCode.TOPIC_NOT_EXIST
    for each in known:
        assert names.request(register(2, 3, **each)).code == 0
    leave = {"clusterName": "c", "brokerName": "other", "brokerId": "0", "brokerAddr": "127.0.0.1:2"}
    assert names.request(RemotingCommand(RequestCode.UNREGISTER_BROKER, ext=leave)).code == 0
    if limit in ("BROKERS_MAX", "ROUTES_MAX"):
        assert names.request(register(count, 4, **more)).code == 0


def test_a_topic_of_an_administrator_is_bounded_too(names: BlockingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names.request(register(2)).code == 0
    monkeypatch.setattr(route_table, "ROUTES_MAX", 2)
    body = json.dumps({"queueDatas": [{"brokerName": "b"}]}).encode()
    answer = names.request(RemotingCommand(217, ext={"topic": "T"}, body=body))
    assert "at most 2 topics of all brokers" in (answer.remark or "")
    long = names.request(RemotingCommand(217, ext={"topic": "T" * 300}, body=body))
    assert "at most 255 characters" in (long.remark or "")
    assert names.request(RemotingCommand(217, ext={"topic": "t1"}, body=body)).code == 0
