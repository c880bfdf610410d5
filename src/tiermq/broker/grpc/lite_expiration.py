"""LiteExpiration: deletes lite topics to which nothing was sent for longer than their parent's `lite.topic.expiration`.

    look ─► newest message older than the minutes of its parent, or deleted with the log
        ─► light queue, offsets and open messages of groups are deleted; what is sent later begins at offset 0 again

As in RocketMQ, what a group has not consumed is not waited for, and nothing expires within 15 minutes of a message or
of the broker's start. Subscriptions stay: their clients get what is sent later.

Invariants: a message that is sent meanwhile is kept (`LocalStore.drop_light_queue`); offsets go under the same lock, so
that no group has an offset of the queue before. The looks begin on the loop's thread, the work is done in the pool.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.pop.order_infos import OrderInfos
from tiermq.broker.topic.attributes import LITE, LITE_EXPIRATION, MESSAGE_TYPE
from tiermq.clock import AGE_UNITS_MS
from tiermq.errors import RequestRefused
from tiermq.message.topic_name import lite_parent

_log = logging.getLogger(__name__)

MINUTE_MS = AGE_UNITS_MS["m"]
IDLE_MS_LEAST = 15 * MINUTE_MS
AT_ONCE = 100
"""Queues that are deleted while dispatch waits."""


class LiteExpiration:
    """See the module."""

    def __init__(self, parts: BrokerContext, orders: OrderInfos) -> None:
        self._parts = parts
        self._orders = orders
        self._started_ms = parts.clock.now_ms()
        self._is_busy = False
        self.expired_count = 0
        parts.hooks.every(parts.config.lite_ttl_check_interval / 1000, self._look)
        parts.metrics.counter(
            "tiermq_lite_topics_expired_total", "lite topics that were deleted", (), lambda: self.expired_count
        )

    def _look(self) -> None:
        now_ms = self._parts.clock.now_ms()
        minutes = {
            name: int(topic.attributes.get(LITE_EXPIRATION, -1))
            for name, topic in self._parts.topics.table.items()
            if topic.attributes.get(MESSAGE_TYPE) == LITE
        }
        if not minutes or self._is_busy or now_ms - self._started_ms < IDLE_MS_LEAST:
            return
        try:
            self._parts.server.run_in_pool(partial(self._expire, minutes, now_ms), self._done)
        except RequestRefused as error:  # The pool is busy: the next look comes.
            _log.info("lite topics are not looked at now: %s", error)
            return
        self._is_busy = True

    def _done(self, count: int | None, failure: Exception | None) -> None:
        self._is_busy = False
        if failure is not None:
            _log.error("lite topics that have expired could not be deleted", exc_info=failure)
        elif count:
            self.expired_count += count
            _log.info("%d lite topics have expired", count)

    def _expire(self, minutes: Mapping[str, int], now_ms: int) -> int:
        local, due = self._parts.local, {}
        for name in local.topics():
            left = minutes.get(lite_parent(name) or "")
            if left is not None:
                before_ms = 0 if left <= 0 else now_ms - max(IDLE_MS_LEAST, left * MINUTE_MS)
                if local.newest_time(name, 0) < before_ms:
                    due[name] = before_ms
        count, names = 0, list(due)
        for at in range(0, len(names), AT_ONCE):
            some = {name: due[name] for name in names[at : at + AT_ONCE]}
            gone: list[str] = []
            local.between_dispatches(partial(self._drop, some, gone))
            count += len(gone)
        return count

    def _drop(self, due: Mapping[str, int], gone: list[str]) -> None:
        gone += [name for name, before_ms in due.items() if self._parts.local.drop_light_queue(name, before_ms)]
        self._parts.offsets.remove_topics(gone)
        self._orders.forget_topics(gone)
