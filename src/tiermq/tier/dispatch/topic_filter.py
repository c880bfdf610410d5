"""Which topics never enter the tier and are always read locally.

Blank names, the system's own topics, light queues, and whatever is blacklisted while running. Retry and dead-letter
topics do enter it. With a whitelist, only its topics do (and those of the rules above still do not). System topics that
are named (`also`) enter it all the same: those of transactions, when a broker is told to keep their outcomes.
A filtered topic is left alone: what the tier holds of it from earlier stays until it expires.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from tiermq.message.topic_name import is_light_queue, is_system_topic


class TopicFilter:
    """Any thread may ask and change it. Asking is one look-up: the answers are remembered until something changes."""

    def __init__(
        self,
        broker: str = "",
        cluster: str = "",
        *,
        whitelist: Iterable[str] | None = None,
        also: Iterable[str] = (),
    ) -> None:
        self._own_names = {broker, cluster} - {""}
        self._also = frozenset(also)
        self._whitelist = None if whitelist is None else set(whitelist)
        self._blacklist: set[str] = set()
        self._lock = threading.Lock()
        self._answers: dict[str, bool] = {}

    def is_filtered(self, topic: str) -> bool:
        """True: never tiered."""
        answer = self._answers.get(topic)
        if answer is None:
            with self._lock:
                answer = self._answers[topic] = self._decide(topic)
        return answer

    def _decide(self, topic: str) -> bool:
        if topic in self._also:
            return topic in self._blacklist
        if not topic or topic.isspace() or is_system_topic(topic) or is_light_queue(topic):
            return True
        if topic in self._own_names or topic in self._blacklist:
            return True
        return self._whitelist is not None and topic not in self._whitelist

    def add_to_blacklist(self, topic: str) -> None:
        with self._lock:
            self._blacklist.add(topic)
            self._answers.clear()

    def remove_from_blacklist(self, topic: str) -> None:
        with self._lock:
            self._blacklist.discard(topic)
            self._answers.clear()

    def set_whitelist(self, topics: Iterable[str] | None) -> None:
        """Only these from now on; None: every topic that no other rule keeps out."""
        with self._lock:
            self._whitelist = None if topics is None else set(topics)
            self._answers.clear()
