"""The topics of the tier and the counter of their ids.

Ids count up from 0 and are never given twice: index items carry them, and an item of a deleted topic must not be taken
for one of its successor. The counter is a row of its own, so it outlives the topics.
"""

from __future__ import annotations

from tiermq.clock import Clock
from tiermq.errors import TierError
from tiermq.tier.metadata.database import Database, Row
from tiermq.tier.metadata.metadata_values import UNLIMITED, Topic, TopicStatus

_SELECT = "SELECT topic_id, name, status, reserve_time_hours, max_bytes, updated_ms FROM topic"
_COUNTER = "topic_serial_number"


class TopicRows:
    """Topics in the database. Part of MetadataStore."""

    _database: Database
    _clock: Clock

    def add_topic(self, name: str, reserve_time_hours: int = UNLIMITED, max_bytes: int = UNLIMITED) -> Topic:
        """The topic of that name; a new one gets the next id. An existing topic is returned as it is."""
        with self._database.transaction():
            known = self.topic(name)
            if known is not None:
                return known
            topic_id = self.topic_serial_number() + 1
            topic = Topic(topic_id, name, TopicStatus.NORMAL, reserve_time_hours, max_bytes, self._clock.now_ms())
            self.put_topic(topic)
            return topic

    def put_topic(self, topic: Topic) -> None:
        """Store the topic exactly as given, id included; the counter moves up when the id is beyond it.

        For import and restore. Raises TierError when another topic has that id.
        """
        with self._database.transaction():
            holder = self._database.read_one("SELECT name FROM topic WHERE topic_id = ?", (topic.id,))
            if holder is not None and holder[0] != topic.name:
                raise TierError(
                    f"topic {topic.name!r}: expected an id of its own, found {topic.id}, which is the id of topic "
                    f"{holder[0]!r}; add it without an id to get the next one"
                )
            self._database.write(
                "INSERT OR REPLACE INTO topic (topic_id, name, status, reserve_time_hours, max_bytes, updated_ms) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (topic.id, topic.name, topic.status, topic.reserve_time_hours, topic.max_bytes, topic.updated_ms),
            )
            self.raise_topic_serial_number(topic.id)

    def topic(self, name: str) -> Topic | None:
        """The topic of that name, or None."""
        row = self._database.read_one(_SELECT + " WHERE name = ?", (name,))
        return None if row is None else _topic(row)

    def topics(self) -> list[Topic]:
        """All topics in the order of their ids. The list is a snapshot: deleting while iterating is fine."""
        return [_topic(row) for row in self._database.read(_SELECT + " ORDER BY topic_id")]

    def update_topic(
        self,
        name: str,
        *,
        status: int | None = None,
        reserve_time_hours: int | None = None,
        max_bytes: int | None = None,
    ) -> bool:
        """Change what is given. False, and nothing changed, when there is no such topic."""
        changed = self._database.write(
            "UPDATE topic SET status = coalesce(?, status), reserve_time_hours = coalesce(?, reserve_time_hours), "
            "max_bytes = coalesce(?, max_bytes), updated_ms = ? WHERE name = ?",
            (status, reserve_time_hours, max_bytes, self._clock.now_ms(), name),
        )
        return changed > 0

    def topic_serial_number(self) -> int:
        """The last id handed out; -1 before the first."""
        row = self._database.read_one("SELECT value FROM counter WHERE name = ?", (_COUNTER,))
        return -1 if row is None else int(row[0])

    def raise_topic_serial_number(self, last_id: int) -> None:
        """Make sure that ids up to `last_id` are never handed out again."""
        self._database.write(
            "UPDATE counter SET value = ? WHERE name = ? AND value < ?",
            (last_id, _COUNTER, last_id),
        )


def _topic(row: Row) -> Topic:
    topic_id, name, status, reserve_time_hours, max_bytes, updated_ms = row
    # A code of a later version is kept as the number it is.
    known = TopicStatus(status) if status in set(TopicStatus) else status
    return Topic(topic_id, name, known, reserve_time_hours, max_bytes, updated_ms)
