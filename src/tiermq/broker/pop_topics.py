"""Names of the topics to which messages come back that a POP consumer was given and did not acknowledge.

%RETRY%group_topic      RocketMQ's usual name: ambiguous, since groups and topics may have underscores
%RETRY%group+topic      the newer one, which no store of ours takes: it is read where a broker of RocketMQ left it, and
                        what comes back once more from there goes to the usual one
"""

from __future__ import annotations

from tiermq.message.topic_name import RETRY_PREFIX

MARK_NORMAL = "0"
MARK_RETRY = "1"
MARK_RETRY_V2 = "2"


def pop_retry_topic(group: str, topic: str, *, v2: bool = False) -> str:
    """The retry topic of a group for a topic; of a retry topic it is that topic itself."""
    if topic.startswith(RETRY_PREFIX + group):
        return topic
    return f"{RETRY_PREFIX}{group}{'+' if v2 else '_'}{topic}"


def topic_to_come_back_to(group: str, topic: str) -> str:
    """Where a message goes that was popped from `topic` and not acknowledged: a topic that the store takes."""
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
