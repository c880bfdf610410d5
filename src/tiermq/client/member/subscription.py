"""Subscription: a topic and which of its messages a group wants, as heartbeats and pulls say it (pure).

Brokers filter tags by their hash: messages of other tags with the same hash are left out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tiermq.errors import BadExpression
from tiermq.message.java_hash import java_hash
from tiermq.message.message_filter import EVERYTHING, SQL92, TAG, tags_in
from tiermq.message.topic_name import check_topic


@dataclass(frozen=True, slots=True)
class Subscription:
    """`version`: of two members' subscriptions to a topic the newer one counts at the broker."""

    topic: str
    expression: str = EVERYTHING
    kind: str = TAG
    version: int = 0
    tags: frozenset[str] = frozenset()

    @classmethod
    def of(cls, topic: str, tags: str | None, sql: str | None, version: int) -> Subscription:
        """Raises BadExpression for what is no filter, IllegalMessage for what is no topic."""
        check_topic(topic)
        for name, given in (("tags", tags), ("sql", sql)):
            if given is not None and not isinstance(given, str):
                raise BadExpression(f"{name}: expected one text, of tags joined with ||, found {given!r}")
        if tags not in (None, "", EVERYTHING) and sql is not None:
            raise BadExpression(f"expected tags or sql, found both: {tags!r} and {sql!r}")
        if sql is not None:
            if not sql.strip():
                raise BadExpression("expected an SQL92 condition such as `amount > 100`, found an empty one")
            return cls(topic, sql, SQL92, version)
        expression = (tags or "").strip() or EVERYTHING
        if expression == EVERYTHING:
            return cls(topic, version=version)
        wanted, _ = tags_in(expression)
        if not wanted:
            raise BadExpression(f"expected * or tags joined with ||, found {tags!r}")
        return cls(topic, " || ".join(sorted(wanted)), TAG, version, wanted)

    def wants(self, tag: str | None) -> bool:
        """Whether a message with this tag, which the broker's filter let pass, passes this one too."""
        return not self.tags or tag in self.tags

    def described(self) -> dict[str, Any]:
        """As a heartbeat has it."""
        return {
            "classFilterMode": False,
            "codeSet": sorted(java_hash(tag) for tag in self.tags),
            "expressionType": self.kind,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": sorted(self.tags),
            "topic": self.topic,
        }
