"""Questions for one client, asked by way of the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.consuming import Peer, messages_of, put
from tiermq.broker.admin import relay_processor as client_relays
from tiermq.broker.broker import Broker
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand


@pytest.fixture
def broker_options(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(client_relays, "PATIENCE_S", 60.0)
    return {}


def test_a_consumer_reports_what_it_does(broker: Broker) -> None:
    with Peer(broker) as consumer, Peer(broker) as operator:
        consumer.client.on_request(
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            lambda asked: asked.respond(body=b'{"asked":"%b"}' % asked.ext["jstackEnable"].encode()),
        )
        consumer.join("G")
        fields: dict[str, Any] = {"consumerGroup": "G", "clientId": "c1", "jstackEnable": "true"}
        answer = operator.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **fields)
        assert (answer.code, bytes(answer.body)) == (0, b'{"asked":"true"}')


def test_a_consumer_is_given_one_message(broker: Broker) -> None:
    put(broker, "this one")
    (message,) = broker.parts.local.get("T", 0, 0).messages
    seen: list[RemotingCommand] = []

    def consume(asked: RemotingCommand) -> RemotingCommand:
        seen.append(asked)
        return asked.respond(body=b'{"consumeResult":"CR_SUCCESS"}')

    with Peer(broker) as consumer, Peer(broker) as operator:
        consumer.client.on_request(RequestCode.CONSUME_MESSAGE_DIRECTLY, consume)
        consumer.join("G")
        fields: dict[str, Any] = {"consumerGroup": "G", "clientId": "c1", "msgId": message.message_id}
        answer = operator.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, **fields)
        assert bytes(answer.body) == b'{"consumeResult":"CR_SUCCESS"}'
        wrong = operator.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, **{**fields, "msgId": "none"})
        assert wrong.code == ResponseCode.SYSTEM_ERROR
    (asked,) = seen
    assert asked.ext["brokerName"] == "b"
    assert messages_of(asked) == [message]


@pytest.mark.parametrize("code", [RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY])
def test_a_client_that_is_not_there_is_an_error(broker: Broker, code: RequestCode) -> None:
    with Peer(broker) as operator:
        answer = operator.ask(code, consumerGroup="G", clientId="nobody", msgId="x")
    assert (answer.code, "not online" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


def test_a_client_that_goes_instead_of_answering_is_an_error(broker: Broker) -> None:
    with Peer(broker) as operator:
        consumer = Peer(broker)
        consumer.client.on_request(RequestCode.GET_CONSUMER_RUNNING_INFO, lambda _asked: None)
        consumer.join("G")
        later = operator.ask_later(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="G", clientId="c1")
        consumer.client.close()
        answer = later.result(60)
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_a_client_that_is_too_old_to_know_the_question_is_not_asked(broker: Broker) -> None:
    with Peer(broker) as consumer, Peer(broker) as operator:
        consumer.join("G")
        members = broker.parts.clients.consumers("G")
        assert members is not None
        for client in members.clients.values():
            client.version = 30
        answer = operator.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="G", clientId="c1")
    assert (answer.code, "too low" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


def reported_status(offset: int) -> Callable[[RemotingCommand], RemotingCommand]:
    """As a Java client answers: the queue itself is the key."""
    queue = '{"brokerName":"b","queueId":0,"topic":"%s"}'
    return lambda asked: asked.respond(
        body=('{"consumerTable":{},"messageQueueTable":{' + queue % asked.ext["topic"] + f":{offset}}}}}").encode()
    )


def test_how_far_the_consumers_of_a_group_are_is_asked_of_each_and_reported_together(broker: Broker) -> None:
    with Peer(broker) as one, Peer(broker) as other, Peer(broker) as broken, Peer(broker) as operator:
        one.client.on_request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, reported_status(7))
        other.client.on_request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, reported_status(9))
        broken.client.on_request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, lambda asked: asked.respond(body=b"no"))
        for peer, client_id in ((one, "c1"), (other, "c2"), (broken, "c3")):
            peer.join("G", client_id=client_id)
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        answer = operator.ask(code, topic="T", group="G", clientAddr="")
        queue = '{"brokerName":"b","queueId":0,"topic":"T"}'
        one_is, other_is = '"c1":{' + queue + ":7}", '"c2":{' + queue + ":9}"
        expected = '{"consumerTable":{' + one_is + "," + other_is + '},"messageQueueTable":{}}'
        assert (answer.code, bytes(answer.body).decode()) == (0, expected)
        alone = operator.ask(code, topic="T", group="G", clientAddr="c2")
        assert bytes(alone.body).decode() == '{"consumerTable":{' + other_is + '},"messageQueueTable":{}}'


def test_how_far_a_group_is_that_has_no_consumers_is_an_error(broker: Broker) -> None:
    with Peer(broker) as operator:
        answer = operator.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="T", group="G")
    assert (answer.code, "No Any Consumer online" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
