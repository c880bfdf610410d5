"""A producer of transactions at the wire: sends halves, ends them, and writes down what it is asked."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any, Self

from broker.brokers import send_command
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


class TransactionPeer:
    def __init__(
        self, address: tuple[str, int], group: str = "PG", client_id: str = "p1", *, now_ms: Callable[[], int]
    ) -> None:
        self.client = BlockingClient(*address, timeout_s=60)
        self.group = group
        self.now_ms = now_ms
        self.asked: queue.Queue[RemotingCommand] = queue.Queue()
        self.client.on_request(RequestCode.CHECK_TRANSACTION_STATE, self.asked.put)
        body = b'{"clientID":"%b","producerDataSet":[{"groupName":"%b"}],"consumerDataSet":[]}'
        beat = RemotingCommand(RequestCode.HEART_BEAT, body=body % (client_id.encode(), group.encode()))
        assert self.client.request(beat).code == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.client.close()

    def prepare(self, body: str, more: str = "", topic: str = "T", **fields: Any) -> RemotingCommand:
        """The answer to a half message."""
        key = f"UNIQ_KEY\x01ID-{body}\x02WAIT\x01true\x02"
        properties = f"{key}TRAN_MSG\x01true\x02PGROUP\x01{self.group}\x02TAGS\x01A\x02{more}"
        command = send_command(topic, body.encode(), **{"properties": properties, "queue": 1, "sys_flag": 4, **fields})
        command.ext["g"] = str(self.now_ms())
        return self.client.request(command)

    def end(self, half: RemotingCommand, how: int, **changes: object) -> RemotingCommand:
        """The answer to an end of what was prepared."""
        place = {"tranStateTableOffset": half.ext["queueOffset"], "commitLogOffset": int(half.ext["msgId"][-16:], 16)}
        return self.client.request(self.ending({**place, "fromTransactionCheck": "false", **changes}, how))

    def answer(self, question: RemotingCommand, how: int) -> RemotingCommand:
        """The same for what was asked."""
        names = ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId")
        fields = {name: question.ext[name] for name in names}
        return self.client.request(self.ending({**fields, "fromTransactionCheck": "true"}, how))

    def ending(self, fields: dict[str, object], how: int) -> RemotingCommand:
        named = {"topic": "T", "producerGroup": self.group, "commitOrRollback": how, "msgId": "", **fields}
        return RemotingCommand(RequestCode.END_TRANSACTION, ext={name: str(value) for name, value in named.items()})


def shown(question: RemotingCommand) -> StoredMessage:
    """The message that a producer is asked about."""
    return decode_record(bytes(question.body))
