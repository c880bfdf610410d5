"""TierTables: a read-only broker shows the tables that the broker it reads has in the tier.

    state-topics      replaced when it differs. A topic that has messages in the tier and is missing there is added
    state-groups      replaced when it differs
    state-offsets     where a group begins that has committed nothing here; its commits here are kept here
    state-modes       replaced

Cost: four GETs every `masterSyncInterval`. Threads: everything happens on the service's own, but the first look.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.group.assignment_processor import AssignmentProcessor, decode_modes
from tiermq.broker.group.consumer_offsets import decode_offsets
from tiermq.broker.group.group_table import decode_groups
from tiermq.broker.topic.topic_table import decode_topics
from tiermq.errors import TierError, TierMQError
from tiermq.namesrv.topic_config import PERM_READ, TopicConfig
from tiermq.service import Service
from tiermq.tier.metadata.broker_state import GROUPS, OFFSETS, REQUEST_MODES, TOPICS, StoredTable, load_broker_state
from tiermq.tier.tiered_store import TieredStore

KINDS = (TOPICS, GROUPS, OFFSETS, REQUEST_MODES)


class TierTables(Service):
    """See the module."""

    def __init__(self, parts: BrokerContext, tiered: TieredStore, processors: Iterable[object]) -> None:
        super().__init__("tier-tables")
        self.problem = ""
        """Why the last look failed, as text; empty if it did not."""
        self._parts = parts
        self._tiered = tiered
        self._topics: Mapping[str, TopicConfig] = {}
        [self._modes] = (each for each in processors if isinstance(each, AssignmentProcessor))

    def run_once(self) -> float:
        self.look()
        return self._parts.config.master_sync_interval / 1000

    def look(self) -> None:
        """Take what the tier has now."""
        try:
            self._take()
            self.problem = ""
        except (OSError, TierMQError) as error:
            if str(error) != self.problem:
                self._note(error)
            self.problem = str(error)

    def _take(self) -> None:
        parts, tier = self._parts, self._tiered.tier
        place = (tier.config.broker_cluster_name, tier.config.broker_name)
        found, problems = load_broker_state(tier.driver, *place, KINDS)
        self._take_topics(found.get(TOPICS.name))
        if (table := found.get(GROUPS.name)) is not None:
            groups, forbidden, version = decode_groups(_text(table))
            if version != parts.groups.data_version:
                parts.groups.follow(groups, forbidden, version)
        if (table := found.get(OFFSETS.name)) is not None:
            parts.offsets.elsewhere = decode_offsets(_text(table))[0]
        if (table := found.get(REQUEST_MODES.name)) is not None:
            self._modes.follow(decode_modes(_text(table)))
        for error in problems.values():
            raise TierError(f"a table of the broker is not known: {error}")

    def _take_topics(self, table: StoredTable | None) -> None:
        topics = {} if table is None else decode_topics(_text(table))[0]
        shown = dict(topics)
        for name, queues in self._tiered.topics().items():
            if name not in shown:
                shown[name] = TopicConfig(name, max(queues) + 1, max(queues) + 1, PERM_READ)
        if shown != self._topics:
            own = self._parts.topics
            own.follow(shown, own.data_version.next(self._parts.clock.now_ms()))
            self._topics = shown


def _text(table: StoredTable) -> bytes:
    return json.dumps(table.document).encode()
