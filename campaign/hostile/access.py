"""TLS and accounts, tried from outside by peers who have no right.

A plain peer on a port that enforces TLS hears nothing, whatever it sends. A request that is not signed, signed with
another secret, or changed after it was signed is refused, for every code that is served. An account without rights gets
nothing done. What the same request means when it is sent twice, signed rightly both times, is not the signature's to
say (docs/wire.md), so that is not tried.
"""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.brokers import SMALL, broker_config, send_command
from campaign.part import Finding, Outcome
from tiermq.broker.broker import Broker
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.frame import encode_frame
from tiermq.remoting.permissions import ACCESS_KEY, SIGNATURE, AccessTable, Credentials
from tiermq.remoting.tls import TlsMode, TlsSettings, trusting_client_context

ACCOUNTS = """
[[accounts]]
accessKey = "root"
secretKey = "the secret of root"
admin = true
[[accounts]]
accessKey = "unknown"
secretKey = "the secret of unknown"
"""
ROOT, ABSENT = Credentials("root", "the secret of root"), Credentials("unknown", "the secret of unknown")
FIELDS = {
    **dict.fromkeys(("topic", "b", "consumerGroup", "group", "producerGroup", "groupName", "a"), "guarded"),
    "queueId": "0", "queueOffset": "0", "commitOffset": "9", "offset": "0", "readQueueNums": "1", "writeQueueNums": "1",
    "perm": "6", "topicFilterType": "SINGLE_TAG", "suspendTimeoutMillis": "1", "delayLevel": "1", "clientID": "c",
    "commitOrRollback": "8", "commitLogOffset": "0", "tranStateTableOffset": "0",
}  # fmt: skip
BODIES = {
    int(RequestCode.HEART_BEAT): b'{"clientID":"c","consumerDataSet":[{"groupName":"guarded"}]}',
    int(RequestCode.LOCK_BATCH_MQ): b'{"consumerGroup":"guarded","clientId":"c","mqSet":[{"topic":"guarded"}]}',
    int(RequestCode.UNLOCK_BATCH_MQ): b'{"consumerGroup":"guarded","clientId":"c","mqSet":[{"topic":"guarded"}]}',
    int(RequestCode.CHECK_CLIENT_CONFIG): b'{"subscriptionData":{"topic":"guarded"}}',
    int(RequestCode.QUERY_ASSIGNMENT): b'{"consumerGroup":"guarded","clientId":"c","topic":"guarded"}',
    int(RequestCode.BATCH_ACK_MESSAGE): b'{"acks":[{"c":"guarded","t":"guarded"}]}',
}
PROMISE = "an account without a right is refused, hears nothing in the clear, and changes nothing"


@dataclass(frozen=True)
class AccessPart:
    """See the module."""

    rounds: int = 20
    name: str = "access"
    title: str = "TLS and accounts, tried by plain, unsigned, forged and powerless peers"

    def missing(self) -> str:
        return ""

    def round(self, seed: int, scratch: Path) -> Outcome:
        accounts = scratch / "acl.toml"
        scratch.mkdir(parents=True, exist_ok=True)
        accounts.write_text(ACCOUNTS)
        broker = Broker.open(
            scratch / "store",
            config=broker_config(),
            acl=AccessTable.load(accounts),
            tls=TlsSettings(TlsMode.ENFORCING),
            **SMALL,
        )
        broker.parts.topics.put(TopicConfig("guarded", 2, 2))
        outcome = Outcome()
        with broker:
            _begin_transaction(broker)
            attack = _Attack(broker, random.Random(seed))
            wrong = [*attack.in_the_clear(), *attack.forged(), *attack.powerless(), *attack.left_unchanged()]
        outcome.counts.update(rounds=1, requests=attack.count)
        outcome.findings += [Finding(PROMISE, each, seed) for each in wrong]
        return outcome

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        return next(iter(self.round(seed, scratch).findings), None)


class _Attack:
    """Everything that one round tries."""

    def __init__(self, broker: Broker, chance: random.Random) -> None:
        self._broker = broker
        self._chance = chance
        self._codes = sorted(broker.parts.server.declared)
        self._before = self._state()
        self.count = 0

    def _state(self) -> tuple[Any, ...]:
        parts = self._broker.parts
        offsets = parts.local.max_offset("guarded", 0), parts.offsets.query("guarded", "guarded", 0)
        return sorted(parts.topics.table), sorted(parts.groups.table), offsets, parts.config

    def _command(self, code: int, header_type: int = HeaderType.JSON) -> RemotingCommand:
        return RemotingCommand(code, ext=FIELDS, body=BODIES.get(code, b"{}"), header_type=header_type)

    def in_the_clear(self) -> list[str]:
        """Signed rightly by root, and not in TLS."""
        wrong = []
        for code in self._codes:
            command = self._command(code, self._chance.choice(list(HeaderType)))
            ROOT.sign(command)
            frame = encode_frame(command)
            with socket.create_connection(("127.0.0.1", self._broker.port)) as peer:
                peer.sendall(frame[: self._chance.choice((1, 9, len(frame)))])
                peer.shutdown(socket.SHUT_WR)
                heard = _all_of(peer)
            self.count += 1
            if heard:
                wrong.append(f"request {code} in the clear was answered with {len(heard)} bytes")
        return wrong

    def forged(self) -> list[str]:
        """Every code, signed in a way that is wrong."""
        wrong = []
        with self._peer() as client:
            for code in self._codes:
                kind = self._chance.choice(("none", "secret", "field", "new field", "body", "key", "bits", "empty"))
                answer = client.request(self._forge(code, kind))
                self.count += 1
                if answer.code != ResponseCode.NO_PERMISSION:
                    wrong.append(f"request {code}, forged by {kind}, was answered with {answer}")
        return wrong

    def _forge(self, code: int, kind: str) -> RemotingCommand:
        command = self._command(code)
        if kind == "none":
            return command
        (Credentials("root", "a guess") if kind == "secret" else ROOT).sign(command)
        if kind == "field":
            command.ext["topic"] = "other"
        elif kind == "new field":
            command.ext["more"] = "x"
        elif kind == "body":
            command.body = bytes(command.body) + b" "
        elif kind == "key":
            command.ext[ACCESS_KEY] = "unknown"
        elif kind == "bits":
            signature = bytearray(command.ext[SIGNATURE].encode())
            signature[self._chance.randrange(len(signature))] ^= 1 << self._chance.randrange(7)
            command.ext[SIGNATURE] = signature.decode("latin-1")
        elif kind == "empty":
            command.ext[SIGNATURE] = ""
        return command

    def powerless(self) -> list[str]:
        """Signed rightly by an account that may do nothing."""
        wrong = []
        with self._peer(ABSENT) as client:
            for code in self._codes:
                answer = client.request(self._command(code))
                self.count += 1
                if answer.code != ResponseCode.NO_PERMISSION:
                    wrong.append(f"request {code} of an account without rights was answered with {answer}")
        return wrong

    def left_unchanged(self) -> list[str]:
        wrong = [] if self._state() == self._before else [f"changed: {self._before} into {self._state()}"]
        with self._peer(ROOT) as client:
            answer = client.request(send_command("guarded", b"by root"))
            self.count += 1
        return wrong if answer.code == ResponseCode.SUCCESS else [*wrong, f"root itself was answered with {answer}"]

    def _peer(self, credentials: Credentials | None = None) -> BlockingClient:
        tls = trusting_client_context()
        return BlockingClient("127.0.0.1", self._broker.port, tls=tls, credentials=credentials, timeout_s=60.0)


def _begin_transaction(broker: Broker) -> None:
    """Half a message at the beginning of the log: ending, viewing or giving back what is there reaches it."""
    with BlockingClient(
        "127.0.0.1", broker.port, tls=trusting_client_context(), credentials=ROOT, timeout_s=60.0
    ) as client:
        half = "TRAN_MSG\x01true\x02PGROUP\x01guarded\x02UNIQ_KEY\x01HALF1\x02"
        answer = client.request(send_command("guarded", b"half", properties=half, sys_flag=4))
    if answer.code != ResponseCode.SUCCESS:
        raise AssertionError(f"a transaction of root was answered with {answer}")


def _all_of(peer: socket.socket) -> bytes:
    heard = bytearray()
    try:
        while piece := peer.recv(65_536):
            heard += piece
    except ConnectionResetError:
        return bytes(heard)
    return bytes(heard)
