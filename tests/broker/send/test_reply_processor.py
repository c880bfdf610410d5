"""Request and reply: the reply reaches the client that waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.brokers import Producer, broker_config, running, send_command, stored
from broker.consuming import until
from tiermq.broker.broker import Broker
from tiermq.broker.send import reply_processor as replying
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.json_dialect import encode_body
from tiermq.remoting.permissions import AccessTable, Credentials

TOPIC = "DefaultCluster_REPLY_TOPIC"
HEARTBEAT = b'{"clientID":"waiting","producerDataSet":[{"groupName":"PG"}],"consumerDataSet":[]}'
PROPERTIES = "UNIQ_KEY\x01K\x02CORRELATION_ID\x01c1\x02REPLY_TO_CLIENT\x01waiting\x02MSG_TYPE\x01reply\x02"


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setattr(replying, "PUSH_TIMEOUT_S", 60.0)
    with running(tmp_path) as made:
        yield made


@pytest.mark.parametrize("body", [b"the reply", b""])
@pytest.mark.parametrize("header_type", list(HeaderType))
@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_a_reply_is_pushed_to_the_client_that_waits_and_stored(
    broker: Broker, header_type: int, code: int, body: bytes
) -> None:
    pushed: list[RemotingCommand] = []

    def take(command: RemotingCommand) -> RemotingCommand:
        pushed.append(command)
        return command.respond()

    with Producer(broker, header_type) as waiting, Producer(broker, header_type) as replier:
        waiting.client.on_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, take)
        waiting.client.request(RemotingCommand(RequestCode.HEART_BEAT, body=HEARTBEAT))
        answer = replier.send(TOPIC, body, code=code, properties=PROPERTIES)
    assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"]) == (ResponseCode.SUCCESS, "0", "0")
    (reported,) = pushed
    assert bytes(reported.body) == body
    assert (reported.ext["topic"], reported.ext["producerGroup"], reported.ext["storeHost"]) == (
        TOPIC,
        "PG",
        broker.address,
    )
    assert reported.ext["bornHost"].startswith("127.0.0.1:")
    assert "CORRELATION_ID\x01c1\x02" in reported.ext["properties"]
    assert "PUSH_REPLY_TIME\x01" in reported.ext["properties"]
    (message,) = stored(broker, TOPIC)
    assert (message.body, message.properties["CORRELATION_ID"]) == (body, "c1")


@pytest.mark.parametrize(
    ("properties", "word"), [("UNIQ_KEY\x01K\x02", "REPLY_TO_CLIENT"), (PROPERTIES, "not connected")]
)
def test_a_reply_that_nobody_can_take_is_an_error_and_stored_all_the_same(
    broker: Broker, properties: str, word: str
) -> None:
    with Producer(broker) as replier:
        answer = replier.send(TOPIC, code=RequestCode.SEND_REPLY_MESSAGE_V2, properties=properties)
    assert (answer.code, word in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert len(stored(broker, TOPIC)) == 1


def test_a_client_that_refuses_the_reply_is_reported_to_the_replier(broker: Broker) -> None:
    with Producer(broker) as waiting, Producer(broker) as replier:
        waiting.client.on_request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, lambda command: command.respond(ResponseCode.SYSTEM_ERROR)
        )
        waiting.client.request(RemotingCommand(RequestCode.HEART_BEAT, body=HEARTBEAT))
        answer = replier.send(TOPIC, code=RequestCode.SEND_REPLY_MESSAGE_V2, properties=PROPERTIES)
    assert (answer.code, "answered the reply with 1" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


def test_replies_are_not_stored_where_that_is_switched_off(tmp_path: Path) -> None:
    with running(tmp_path, config=broker_config(store_reply_message_enable=False)) as broker, Producer(broker) as peer:
        peer.send(TOPIC, code=RequestCode.SEND_REPLY_MESSAGE_V2, properties=PROPERTIES)
        peer.client.oneway(send_command(TOPIC, code=RequestCode.SEND_REPLY_MESSAGE_V2, properties=PROPERTIES))
        assert peer.send("Unknown", code=RequestCode.SEND_REPLY_MESSAGE_V2).code == ResponseCode.TOPIC_NOT_EXIST
        assert broker.parts.local.put_count == 0


def test_a_reply_is_taken_by_no_other_account_that_uses_the_client_s_id(tmp_path: Path) -> None:
    """Neither as a consumer, nor as a producer, nor by coming first without the right to read replies."""
    accounts = tmp_path / "acl.toml"
    rights = {"victim": f"{TOPIC}=PUB|SUB", "rival": f"{TOPIC}=SUB", "thief": "T=PUB|SUB"}
    account = '[[accounts]]\naccessKey = "%s"\nsecretKey = "long"\ntopicPerms = ["%s"]\ngroupPerms = ["G=SUB"]\n'
    accounts.write_text("".join(account % each for each in rights.items()))
    consumers = [{"groupName": "G", "subscriptionDataSet": []}]
    beat = {"clientID": "waiting", "producerDataSet": [{"groupName": "PG"}], "consumerDataSet": consumers}
    taken: list[str] = []
    with running(tmp_path, acl=AccessTable.load(accounts)) as broker, ExitStack() as stack:

        def join(name: str) -> BlockingClient:
            signer = Credentials(name, "long")
            client = BlockingClient("127.0.0.1", broker.port, credentials=signer, timeout_s=60)
            stack.enter_context(client)

            def take(pushed: RemotingCommand) -> RemotingCommand:
                taken.append(name)
                return pushed.respond()

            client.on_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, take)
            assert client.request(RemotingCommand(RequestCode.HEART_BEAT, body=encode_body(beat))).code == 0
            return client

        clients = {name: join(name) for name in ("thief", "victim", "rival")}
        reply = send_command(TOPIC, code=RequestCode.SEND_REPLY_MESSAGE_V2, properties=PROPERTIES)
        assert clients["victim"].request(reply).code == 0
        again = join("victim")  # It has lost its connection, and the broker has not seen that yet.
        assert again.request(reply).code == 0
        assert taken == ["victim", "victim"]
        clients["victim"].close()
        until(broker, lambda: len(broker.parts.server.connections) == 3)
        assert again.request(reply).code == 0
        assert taken == ["victim", "victim", "victim"]
