"""BrokerHealth: which brokers a producer avoids for a while, by how long their answers took (pure).

RocketMQ's table: an answer that took as long as the first number, or longer, keeps the broker out of use for the
second. A failure counts as ten seconds.
"""

from __future__ import annotations

FAILED_S = 10.0
AVOIDED_S = ((15.0, 30.0), (10.0, 30.0), (5.0, 10.0), (3.0, 6.0), (1.8, 5.0), (0.55, 2.0))


class BrokerHealth:
    """Belongs to the loop of its producer. Times are of one monotonic clock."""

    __slots__ = ("_until_s",)

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    def answered(self, broker_name: str, took_s: float, now_s: float) -> None:
        """A broker answered. Quick answers, which are most, cost one comparison."""
        if took_s < AVOIDED_S[-1][0]:
            if self._until_s:
                self._until_s.pop(broker_name, None)
            return
        for slow_s, avoided_s in AVOIDED_S:
            if took_s >= slow_s:
                self._until_s[broker_name] = now_s + avoided_s
                return

    def failed(self, broker_name: str, now_s: float) -> None:
        self.answered(broker_name, FAILED_S, now_s)

    def is_avoided(self, broker_name: str, now_s: float) -> bool:
        until_s = self._until_s.get(broker_name)
        if until_s is None:
            return False
        if now_s < until_s:
            return True
        del self._until_s[broker_name]
        return False
