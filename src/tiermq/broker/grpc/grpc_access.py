"""Who may make a call of gRPC: declared here for each, and checked before its handler runs.

A call without a declaration is not served. What a call reaches by other ways than its fields (a receipt handle,
settings of a client) its handler checks besides, once it knows it, and before any effect or answer. Without accounts
nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiermq.remoting.access import Access
from tiermq.remoting.permissions import EITHER, Account, Permission


def _topic(wanted: Permission, text: str, of: Callable[[Any], Any] = lambda request: request.topic) -> Access:
    return Access(text, lambda account, request: account.require_topic(of(request).name, wanted))


def _topics_of_messages(account: Account, request: Any) -> None:
    for topic in dict.fromkeys(message.topic.name for message in request.messages):
        account.require_topic(topic, Permission.PUB)


def _in_group(account: Account, request: Any) -> None:
    account.require_group(request.group.name)


def _queue(request: Any) -> Any:
    return request.message_queue.topic


_GROUP = Access("SUB of the group", _in_group)
_CONSUMER = _topic(Permission.SUB, "SUB of the topic") & _GROUP
_QUEUE_CONSUMER = _topic(Permission.SUB, "SUB of the topic", _queue) & _GROUP
_OWN = Access(
    "the account that registered the client, while it has the permissions of its settings",
    lambda _account, _request: None,
)
"""The handler finds the client by its caller's account, and no other."""
_SETTINGS = Access("PUB of each topic, or SUB of the group and of each topic, of its settings", _OWN.check)
"""Checked for each message of the stream (`GrpcClients.check`)."""

ACCESS: dict[str, Access] = {
    "QueryRoute": _topic(EITHER, "PUB or SUB of the topic"),
    "QueryAssignment": _CONSUMER,
    "Telemetry": _SETTINGS,
    "Heartbeat": _OWN,
    "NotifyClientTermination": _OWN,
    "SendMessage": Access("PUB of the topic", _topics_of_messages),
    "EndTransaction": _topic(Permission.PUB, "PUB of the topic"),
    "RecallMessage": _topic(Permission.PUB, "PUB of the topic"),
    "ReceiveMessage": _QUEUE_CONSUMER,
    "AckMessage": _CONSUMER,
    "ChangeInvisibleDuration": _CONSUMER,
    "ForwardMessageToDeadLetterQueue": _CONSUMER,
    "SyncLiteSubscription": _CONSUMER,
    "PullMessage": _QUEUE_CONSUMER,
    "UpdateOffset": _QUEUE_CONSUMER,
    "GetOffset": _QUEUE_CONSUMER,
    "QueryOffset": _topic(EITHER, "PUB or SUB of the topic", _queue),
}
