"""Accounts and TLS of the gRPC port: the same rules as those of remoting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from broker.brokers import broker_config, running
from broker.grpc.grpc_peer import GrpcPeer
from present import present
from servers.loopback import free_ports
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.listen_address import broker_sockets
from tiermq.errors import BadConfig
from tiermq.grpc.messages import Code, MessageType, TelemetryCommand, request_class
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.permissions import AccessFile
from tiermq.remoting.tls import TlsMode, TlsSettings, make_self_signed

ACCOUNTS = """
[[accounts]]
accessKey = "producer"
secretKey = "secret-p"
topicPerms = ["T=PUB"]

[[accounts]]
accessKey = "consumer"
secretKey = "secret-c"
topicPerms = ["T=SUB"]
groupPerms = ["G=SUB"]

[[accounts]]
accessKey = "other"
secretKey = "secret-o"
topicPerms = ["Secret=PUB"]

[[accounts]]
accessKey = "denied"
secretKey = "secret-d"
defaultTopicPerm = "PUB|SUB"
defaultGroupPerm = "SUB"
topicPerms = ["secret=DENY"]
"""
PRODUCER, CONSUMER, OTHER = ("producer", "secret-p"), ("consumer", "secret-c"), ("other", "secret-o")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Broker]:
    (tmp_path / "accounts.toml").write_text(ACCOUNTS)
    [port] = free_ports(1)
    acl = AccessFile(tmp_path / "accounts.toml")
    with running(tmp_path, config=broker_config(grpc_server_port=port), acl=acl) as broker:
        broker.parts.topics.put(TopicConfig("T", 1, 1))
        yield broker


def change(guarded: Broker, tmp_path: Path, old: str, new: str) -> None:
    """Of the accounts."""
    (tmp_path / "accounts.toml").write_text(ACCOUNTS.replace(old, new))
    assert isinstance(guarded.parts.server.acl, AccessFile)
    assert guarded.parts.server.acl.reload()


def peer_of(broker: Broker, account: tuple[str, str] | None, client_id: str = "") -> GrpcPeer:
    return GrpcPeer(broker.config.grpc_server_port, account=account, client_id=client_id)


def received(peer: GrpcPeer, group: str = "G") -> int:
    request = request_class("ReceiveMessage")(group={"name": group}, message_queue={"topic": {"name": "T"}, "id": -1})
    request.invisible_duration.seconds = 60
    return int(peer.call("ReceiveMessage", request)[0].status.code)


@pytest.mark.parametrize("account", [None, ("producer", "wrong"), ("stranger", "secret-p")])
def test_a_call_without_a_good_signature_is_unauthorized(guarded: Broker, account: tuple[str, str] | None) -> None:
    with peer_of(guarded, account) as peer:
        assert peer.send(peer.message("T")).status.code == Code.UNAUTHORIZED
        assert peer.call("QueryRoute", topic={"name": "T"}).status.code == Code.UNAUTHORIZED
        assert received(peer) == Code.UNAUTHORIZED
        with pytest.raises(grpc.RpcError):
            peer.settle(client_type=1, publishing={"topics": [{"name": "T"}]})
    assert guarded.parts.local.max_offset("T", 0) <= 0


def test_each_account_does_what_it_may(guarded: Broker) -> None:
    with peer_of(guarded, PRODUCER) as producer, peer_of(guarded, CONSUMER) as consumer:
        assert producer.send(producer.message("T")).status.code == Code.OK
        assert producer.send(producer.message("Other")).status.code == Code.FORBIDDEN
        assert received(producer) == Code.FORBIDDEN
        assert consumer.send(consumer.message("T")).status.code == Code.FORBIDDEN
        assert received(consumer, "Others") == Code.FORBIDDEN
        [message] = consumer.receive("T")
        assert producer.acknowledge("T", message).status.code == Code.FORBIDDEN
        assert consumer.acknowledge("T", message).status.code == Code.OK


def test_the_fast_path_of_sends_takes_an_account_s_messages_until_it_has_lost_the_right(
    guarded: Broker, tmp_path: Path
) -> None:
    sends = present(guarded.grpc)._sends
    with peer_of(guarded, PRODUCER) as producer, peer_of(guarded, CONSUMER) as consumer:
        for _ in range(2):  # The first message of a queue takes the general path.
            assert producer.send(producer.message("T")).status.code == Code.OK
        assert sends.taken_count == 1
        assert consumer.send(consumer.message("T")).status.code == Code.FORBIDDEN
        change(guarded, tmp_path, 'topicPerms = ["T=PUB"]', 'topicPerms = ["T=SUB"]')
        assert producer.send(producer.message("T")).status.code == Code.FORBIDDEN
        producer.account = ("producer", "wrong")
        assert producer.send(producer.message("T")).status.code == Code.UNAUTHORIZED
    assert sends.taken_count == 1
    guarded.parts.local.dispatch_now()
    assert guarded.parts.local.max_offset("T", 0) == 2


def test_each_call_on_offsets_needs_the_right_to_consume(guarded: Broker) -> None:
    guarded.parts.groups.find_or_make("G")
    queue: dict[str, Any] = {"message_queue": {"topic": {"name": "T"}}}
    with (
        peer_of(guarded, CONSUMER) as consumer,
        peer_of(guarded, PRODUCER) as producer,
        peer_of(guarded, OTHER) as other,
    ):
        for group, peer, wanted in (
            ("G", consumer, Code.OK),
            ("G", producer, Code.FORBIDDEN),
            ("G", other, Code.FORBIDDEN),
            ("Others", consumer, Code.FORBIDDEN),
        ):
            of: dict[str, Any] = {"group": {"name": group}, **queue}
            assert peer.call("UpdateOffset", **of, offset=0).status.code == wanted
            assert peer.call("GetOffset", **of).status.code == wanted
            pulled = peer.call("PullMessage", **of, batch_size=1)[0].status.code
            assert pulled == (Code.MESSAGE_NOT_FOUND if wanted is Code.OK else wanted)
        codes = [peer.call("QueryOffset", **queue).status.code for peer in (consumer, producer, other)]
        assert codes == [Code.OK, Code.OK, Code.FORBIDDEN], "PUB or SUB of the topic"


def test_a_retry_topic_that_may_hold_copies_of_a_denied_topic_is_not_written(guarded: Broker) -> None:
    with peer_of(guarded, ("denied", "secret-d")) as denied:
        assert denied.send(denied.message("%RETRY%G2_secret")).status.code == Code.FORBIDDEN


def test_another_account_with_the_same_client_id_takes_nothing_over(guarded: Broker) -> None:
    settings = {"client_type": 3, "subscription": {"group": {"name": "G"}}}
    with peer_of(guarded, CONSUMER, "same") as consumer, peer_of(guarded, PRODUCER, "same") as producer:
        assert consumer.settle(**settings).status.code == Code.OK
        assert producer.call("NotifyClientTermination").status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        assert consumer.call("Heartbeat", client_type=3).status.code == Code.OK


def test_an_account_that_is_gone_or_has_lost_a_right_has_no_member_by_an_old_stream(
    guarded: Broker, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"client_type": 3, "subscription": {"group": {"name": "G"}}}
    with peer_of(guarded, CONSUMER) as first, peer_of(guarded, CONSUMER) as second:
        for each in (first, second):
            assert each.settle(**settings).status.code == Code.OK
        change(guarded, tmp_path, 'groupPerms = ["G=SUB"]', "")
        assert first.call("Heartbeat", client_type=3).status.code == Code.FORBIDDEN
        change(guarded, tmp_path, '"consumer"', '"another"')
        second.tell(TelemetryCommand(settings=settings))
        with pytest.raises(grpc.RpcError) as found:
            next(second.telemetry)
        assert found.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_half_message_is_ended_by_an_account_that_may_publish(guarded: Broker) -> None:
    with peer_of(guarded, PRODUCER) as producer, peer_of(guarded, CONSUMER) as consumer:
        [entry] = producer.send(producer.message("T", message_type=MessageType.TRANSACTION)).entries
        end: dict[str, Any] = {"topic": {"name": "T"}, "transaction_id": entry.transaction_id, "resolution": 1}
        assert consumer.call("EndTransaction", **end).status.code == Code.FORBIDDEN
        assert producer.call("EndTransaction", **end).status.code == Code.OK


def test_forged_handles_reach_no_record_of_a_topic_that_is_denied(guarded: Broker) -> None:
    guarded.parts.topics.put(TopicConfig("Secret", 1, 1))
    with (
        peer_of(guarded, PRODUCER) as producer, peer_of(guarded, CONSUMER) as consumer, peer_of(guarded, OTHER) as other
    ):  # fmt: skip
        assert producer.send(producer.message("T")).status.code == Code.OK
        assert other.send(other.message("Secret", b"secret")).status.code == Code.OK
        half = other.send(other.message("Secret", message_type=MessageType.TRANSACTION)).entries[0]
        guarded.parts.local.dispatch_now()
        [secret] = guarded.parts.local.get("Secret", 0, 0, 1).messages
        [message] = consumer.receive("T")
        words = message.system_properties.receipt_handle.split(" ")
        forged = " ".join([*words[:-1], str(secret.physical_offset)])
        mine: dict[str, Any] = {"group": {"name": "G"}, "topic": {"name": "T"}, "message_id": "m"}
        answer = consumer.call("ForwardMessageToDeadLetterQueue", receipt_handle=forged, **mine)
        assert answer.status.code == Code.FORBIDDEN
        assert guarded.parts.topics.get("%DLQ%G") is None
        end: dict[str, Any] = {"topic": {"name": "T"}, "transaction_id": half.transaction_id, "resolution": 1}
        assert producer.call("EndTransaction", **end).status.code != Code.OK
        assert guarded.parts.local.max_offset("Secret", 0) == 1, "it is not committed"
        assert other.call("EndTransaction", **{**end, "topic": {"name": "Secret"}}).status.code == Code.OK


def test_tls_and_plain_peers_share_the_port_unless_tls_is_enforced(tmp_path: Path) -> None:
    made = make_self_signed("server")
    (tmp_path / "server.pem").write_text(made.certificate + made.key)
    for mode in (TlsMode.PERMISSIVE, TlsMode.ENFORCING):
        [port] = free_ports(1)
        tls = TlsSettings(mode, tmp_path / "server.pem")
        with running(tmp_path / mode.value, config=broker_config(grpc_server_port=port), tls=tls):
            with GrpcPeer(port, tls=made.certificate) as secured:
                assert secured.send(secured.message("T", b"x" * 300_000)).status.code == Code.OK
                secured.receive("T")
            with GrpcPeer(port) as plain:
                if mode is TlsMode.PERMISSIVE:
                    assert plain.send(plain.message("T")).status.code == Code.OK
                else:
                    with pytest.raises(grpc.RpcError):
                        plain.call("QueryRoute", topic={"name": "T"}, timeout_s=5)


def test_grpc_without_its_packages_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiermq.broker.listen_address.GRPC_MODULES", ("no_such_package_of_ours",))
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, grpc_server_port=free_ports(1)[0])
    with pytest.raises(BadConfig, match=r"tiermq\[grpc\]"):
        broker_sockets(config)


def test_without_a_port_grpc_is_off(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        assert broker.grpc is None
        assert broker.grpc_address is None
