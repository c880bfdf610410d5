"""Whole requests at a running broker: every code that it serves, with fields and bodies that make no sense.

Each is answered with a code that RocketMQ knows; none is a mistake of a handler's own; the broker serves others on.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.brokers import SMALL, broker_config, send_command
from campaign.hostile.mutator import Mutator
from campaign.hostile.wire_targets import body_seeds
from campaign.part import Finding, Outcome
from tiermq.broker.broker import Broker
from tiermq.errors import RemotingError
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import HeaderType, RemotingCommand

REQUESTS = 400
KNOWN = frozenset(int(code) for code in ResponseCode)
FIELDS = (
    "consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis",
    "subscription", "subVersion", "expressionType", "group", "offset", "delayLevel", "originMsgId", "originTopic",
    "maxReconsumeTimes", "key", "maxNum", "beginTimestamp", "endTimestamp", "timestamp", "boundaryType", "clientID",
    "producerGroup", "setZeroIfNotFound", "committed", "_UNIQUE_KEY_QUERY", "a", "b", "c", "d", "e", "f", "g", "h", "i",
    "j", "k", "l", "m", "extraInfo", "invisibleTime", "initMode", "order", "attemptId", "born", "pollTime", "bornTime",
    "tranStateTableOffset", "commitLogOffset", "commitOrRollback", "fromTransactionCheck", "msgId", "transactionId",
    "defaultTopic", "readQueueNums", "writeQueueNums", "perm", "topicFilterType", "topicSysFlag", "attributes",
    "groupName", "cleanOffset", "isForce", "isC", "recallHandle", "srcGroup", "destGroup", "exp", "mode",
)  # fmt: skip
VALUES = (
    "T", "G", "0", "1", "-1", "3", "32", "*", "A || B", "SQL92", "TAG", "a > 1", "true", "", "X", "2147483648",
    "1" * 30, "-9223372036854775808", "../../x", "%RETRY%G", "%DLQ%G", "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC", "\0", "é", "\u2028", "TAGS\x01a\x02KEYS\x01k\x02",
    "TIMER_DELAY_SEC\x0199999999999\x02", "DELAY\x01-5\x02", "INNER_NUM\x01x\x02", "0 1 60000 0 0 b1 0 0", "1 2 3",
    "7F00000100002A9F0000000000000000", "+message.type=DELAY", "PULL", "POP",
)  # fmt: skip
SHORT = frozenset({"pollTime", "suspendTimeoutMillis", "bornTime"})
"""How long a request may be held: not long, here."""
LEFT_OUT = frozenset({int(RequestCode.CONSUME_MESSAGE_DIRECTLY), int(RequestCode.GET_CONSUMER_RUNNING_INFO)})
"""They ask a client, and wait for it."""
PROMISE = "any request is answered with a known code, and none is a mistake of a handler's own"


@dataclass(frozen=True)
class RequestsPart:
    """See the module."""

    requests: int = REQUESTS
    rounds: int = 100
    name: str = "requests"
    title: str = "every request that a broker serves, with senseless fields and bodies"

    def missing(self) -> str:
        return ""

    def round(self, seed: int, scratch: Path) -> Outcome:
        return self._run(seed, scratch, range(self.requests))

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        """The one request that is enough alone, if there is one."""
        for number in range(self.requests):
            findings = self._run(seed, scratch / str(number), range(number, number + 1)).findings
            if findings:
                return findings[0]
        return None

    def _run(self, seed: int, scratch: Path, numbers: range) -> Outcome:
        outcome = Outcome()
        scratch.mkdir(parents=True, exist_ok=True)
        broker = Broker.open(scratch / "store", config=broker_config(), **SMALL)
        broker.parts.topics.put(TopicConfig("T", 4, 4))
        with broker, BlockingClient("127.0.0.1", broker.port, timeout_s=60.0) as bystander:
            codes = sorted((broker.parts.server.codes | {10, 310, 320}) - LEFT_OUT)
            bystander.request(send_command("T", b"one"))
            seen: set[tuple[int, int]] = set()
            for number in numbers:
                command = _command(seed, number, codes)
                reported = repr(command)
                problem = _ask(broker, command, seen)
                if problem:
                    outcome.findings.append(Finding(PROMISE, f"{problem}: {reported[:300]}", seed, (reported[:2000],)))
            answer = bystander.request(send_command("T2", b"two"))
            if answer.code != ResponseCode.SUCCESS:
                outcome.findings.append(Finding(PROMISE, f"afterwards a send is answered {answer}", seed))
        outcome.counts.update(rounds=1, requests=len(numbers), distinct_answers=len(seen))
        return outcome


def _command(seed: int, number: int, codes: list[int]) -> RemotingCommand:
    chance = random.Random(f"{seed}/{number}")
    names = chance.sample(FIELDS, chance.randint(0, len(FIELDS)))
    ext = {name: "1" if name in SHORT else chance.choice(VALUES) for name in names}
    if chance.random() < 0.6:
        ext |= {"topic": "T", "queueId": "0", "consumerGroup": "G", "queueOffset": "0", "b": "T"}
    seeds = body_seeds()
    body = b"" if chance.random() < 0.3 else Mutator(chance).mutated(chance.choice(seeds), seeds)
    header_type = chance.choice(list(HeaderType))
    return RemotingCommand(chance.choice(codes), ext=ext, body=body, header_type=header_type)


def _ask(broker: Broker, command: RemotingCommand, seen: set[tuple[int, int]]) -> str:
    """What is wrong with the answer, in words."""
    server: Any = broker.parts.server
    before, code = server.handler_errors, int(command.code)
    try:
        with BlockingClient("127.0.0.1", broker.port, timeout_s=60.0, header_type=command.header_type) as client:
            answer = client.request(command)
    except RemotingError as error:
        return f"not answered ({error})"
    seen.add((code, int(answer.code)))
    if server.handler_errors != before:
        return f"a mistake of the handler ({answer.remark})"
    return "" if int(answer.code) in KNOWN else f"answered with {int(answer.code)}, which is unknown"
