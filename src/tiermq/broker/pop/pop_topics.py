"""Names of the retry topics for popped messages that were not acknowledged.

%RETRY%group_topic      RocketMQ's default name: ambiguous, since groups and topics may have underscores
%RETRY%group+topic      the newer name, which TierMQ's store rejects: it is read where a RocketMQ broker left it, and
                        further retries from there use the default name

Group a_b with topic c and group a with topic b_c share a default name. A message names its group (`GIVEN_BACK`), and is
delivered to that group only. A message of a RocketMQ broker names none: it is delivered while no other group and
topic of this broker have the same name, and to none of them otherwise. A group may even be named a_b_c: its own retry
topic has the same name, and it gets all messages there but those that name another group.

With accounts the name of the retry topic does not decide alone: a message that names its group is read, by whichever
request, with SUB of that group and of the topic that it was popped from (`may_read`).
"""

from __future__ import annotations

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.pull.sql_filter import encoded_properties_of
from tiermq.message.layout import ReadableBuffer
from tiermq.message.message_filter import MessageFilter
from tiermq.message.properties import GIVEN_BACK, get_property
from tiermq.message.topic_name import RETRY_PREFIX
from tiermq.remoting.access import require_topic
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.permissions import Account, Permission, no_permission

MARK_NORMAL = "0"
MARK_RETRY = "1"
MARK_RETRY_V2 = "2"


def pop_retry_topic(group: str, topic: str, *, v2: bool = False) -> str:
    """The retry topic of a group for a topic; of a retry topic, the same topic."""
    if topic.startswith(RETRY_PREFIX + group):
        return topic
    return f"{RETRY_PREFIX}{group}{'+' if v2 else '_'}{topic}"


def topic_to_come_back_to(group: str, topic: str) -> str:
    """The retry topic, valid for the store, of unacknowledged messages of `topic`."""
    newer = pop_retry_topic(group, "", v2=True)
    return pop_retry_topic(group, topic.removeprefix(newer) if topic.startswith(newer) else topic)


def pop_retry_topics(group: str, topic: str) -> tuple[str, str]:
    """Both names that there may be."""
    return pop_retry_topic(group, topic), pop_retry_topic(group, topic, v2=True)


def real_topic(group: str, topic: str, mark: str) -> str:
    """Which topic a queue is of, by the mark that POP's answers and receipts have."""
    if mark == MARK_RETRY:
        return pop_retry_topic(group, topic)
    if mark == MARK_RETRY_V2:
        return pop_retry_topic(group, topic, v2=True)
    return topic


def is_of_pair(group: str, retry_topic: str) -> bool:
    """Whether a topic has the default name of a group's retry topic for some topic."""
    return retry_topic.startswith(pop_retry_topic(group, ""))


def origin_group(properties: bytes, retry_topic: str) -> str | None:
    """The group of a message of a retry topic; None if it names none."""
    words = (get_property(properties, GIVEN_BACK.encode()) or b"").decode("utf-8", "replace").split(" ")
    return words[0] if words[0] and is_of_pair(words[0], retry_topic) else None


def may_read(account: Account | None, topic: str, properties: bytes) -> bool:
    """Whether an account that may read `topic` may read a message there with these properties."""
    if account is None or not topic.startswith(RETRY_PREFIX):
        return True
    group = origin_group(properties, topic)
    if group is None:
        return True
    origin = topic.removeprefix(pop_retry_topic(group, ""))
    return account.may_use_group(group) and account.may_use_topic(origin, Permission.SUB)


def require_message(command: RemotingCommand, topic: str, properties: bytes) -> None:
    """Raises RequestRefused unless the request's signer may read a message that the request reaches."""
    require_topic(command, topic, Permission.SUB)
    if not may_read(command.account, topic, properties):
        raise no_permission(f"the message in {topic} came back to a group and a topic that the account may not SUB")


def may_share_retry_topic(group: str, topic: str) -> bool:
    """Whether a topic is a group's own retry topic, by a name that POP may have given to another group and a topic."""
    return topic == RETRY_PREFIX + group and ("_" in group or "+" in group)


class NotOfOthers(MessageFilter):
    """Hides those messages of a group's own retry topic that POP gave back to another group of the same name."""

    def __init__(self, group: str, retry_topic: str, chosen: MessageFilter | None = None) -> None:
        self._group = group
        self._topic = retry_topic
        self.chosen = chosen
        self.steps = getattr(chosen, "steps", 0)

    def matches_unit(self, tags_code: int | None, ext_unit: object | None) -> bool:
        return self.chosen is None or self.chosen.matches_unit(tags_code, ext_unit)

    def matches_record(self, record: ReadableBuffer) -> bool:
        if origin_group(encoded_properties_of(record), self._topic) not in (None, self._group):
            return False
        return self.chosen is None or self.chosen.matches_record(record)


class Readable(MessageFilter):
    """Hides messages of a retry topic that the account may not read, whichever group it asks for."""

    def __init__(self, account: Account, retry_topic: str, chosen: MessageFilter | None) -> None:
        self._account = account
        self._topic = retry_topic
        self._chosen = chosen
        self.steps = getattr(chosen, "steps", 0)

    @classmethod
    def of(cls, account: Account | None, topic: str, chosen: MessageFilter | None) -> MessageFilter | None:
        """`chosen` itself where every message of `topic` may be read."""
        if account is None or account.admin or not topic.startswith(RETRY_PREFIX):
            return chosen
        return cls(account, topic, chosen)

    def matches_unit(self, tags_code: int | None, ext_unit: object | None) -> bool:
        return self._chosen is None or self._chosen.matches_unit(tags_code, ext_unit)

    def matches_record(self, record: ReadableBuffer) -> bool:
        if not may_read(self._account, self._topic, encoded_properties_of(record)):
            return False
        return self._chosen is None or self._chosen.matches_record(record)


class OwnRetries(MessageFilter):
    """Lets those messages of a retry topic pass that came back for a group, as far as `chosen` lets them pass."""

    def __init__(self, parts: BrokerContext, group: str, retry_topic: str, chosen: MessageFilter | None = None) -> None:
        self._parts = parts
        self._group = group
        self._topic = retry_topic
        self._chosen = chosen
        self._shared: bool | None = None

    def matches_unit(self, tags_code: int | None, ext_unit: object | None) -> bool:
        return self._chosen is None or self._chosen.matches_unit(tags_code, ext_unit)

    def matches_record(self, record: ReadableBuffer) -> bool:
        if not self.are_own(encoded_properties_of(record)):
            return False
        return self._chosen is None or self._chosen.matches_record(record)

    def are_own(self, properties: bytes) -> bool:
        """The same of a message's properties alone."""
        origin = origin_group(properties, self._topic)
        if origin is not None:
            return origin == self._group
        if self._shared is None:
            self._shared = self._is_shared()
        return not self._shared

    def _is_shared(self) -> bool:
        """Whether another group of this broker has the same retry topic, of its own or for a topic that is here."""
        topics, groups = self._parts.topics, self._parts.groups
        name = self._topic.removeprefix(RETRY_PREFIX)
        splits = ((name[:at], name[at + 1 :]) for at, letter in enumerate(name) if letter == "_")
        return groups.get(name) is not None or any(
            group != self._group and groups.get(group) is not None and topics.get(topic) is not None
            for group, topic in splits
        )
