"""DrainProcessor: empty a broker into its tier before it is taken away. TierMQ's own request.

    210004  DRAIN_BROKER   `close`: true (refuse sends), false (take them again), none (ask only)  `tiermq broker drain`

The answer is what is left, as JSON: messages that the tier lacks, why the local log is not proven to be there, messages
that wait in the broker's own log (delayed, timers, open transactions, popped), topics that are never uploaded, and
groups that have not consumed everything. Deliveries, retries, ends of transactions and reads go on, so each of these
counts falls; a broker of which nothing is left may be stopped, and its disk be deleted.

Invariants: sends are refused by this process only, and only until it ends: what it took before is uploaded at its end,
as ever. One request at a time uploads; the tier's own thread compares, and the client asks again until it has. A send
that was under way when sends were closed may be stored after one answer, so that two without anything left are needed.
"""

from __future__ import annotations

import dataclasses
import threading

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.group.subscription import MessageModel
from tiermq.errors import RequestRefused, TierError
from tiermq.message.topic_name import is_broker_group, is_broker_topic
from tiermq.remoting.access import ADMINISTRATOR, serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import encode_body

UPLOAD_S = 2.0
"""How long one request waits for uploads: the client asks again."""
REASON = "it is being drained"


class DrainProcessor:
    """See the module. Serves in the server's pool, since it waits for the tier."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts
        self._working = threading.Lock()

    @serves(RequestCode.DRAIN_BROKER, access=ADMINISTRATOR, in_pool=True)
    def drain(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        parts, close = self._parts, command.ext.get("close") or ""
        if close not in ("", "true", "false"):
            raise RequestRefused(f"close: expected true or false, found {close[:40]!r}")
        if parts.replication.is_slave:
            raise RequestRefused(
                f"expected the master of {parts.config.broker_name}, found a slave: its master uploads. "
                f"The master is at {parts.replication.master_address or 'an address that is not known now'}",
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            )
        if parts.tiered is None:
            raise RequestRefused(
                "expected a broker with a tier, into which it can be emptied, found one without: start it with --tier",
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            )
        if close:
            parts.topics.close(REASON if close == "true" else "")
        with self._working:
            return command.respond(body=encode_body(self._left()))

    def _left(self) -> dict[str, object]:
        parts, store = self._parts, self._parts.tiered
        assert store is not None
        is_closed = bool(parts.topics.closed_for)
        held = parts.hooks.held()  # First: what is delivered after this is counted as not uploaded.
        unproven = ""
        if is_closed:
            try:
                store.flush_to_tier(UPLOAD_S)
                unproven = store.unproven()
            except TierError as error:
                unproven = str(error)
        trouble = store.trouble
        return {
            "broker": parts.config.broker_name,
            "tier": store.tier.driver.url,
            "closed": is_closed,
            "notUploaded": dataclasses.asdict(store.not_uploaded()),
            "notProven": unproven,
            "held": held,
            "localOnly": store.local_only(),
            "behind": self._behind(),
            "trouble": "" if trouble is None else str(trouble),
        }

    def _behind(self) -> list[dict[str, object]]:
        """Groups that have not consumed what is here. Queues without an offset count from their first message."""
        parts, found = self._parts, []
        offsets = {
            (key.partition("@")[2], key.partition("@")[0]): each for key, each in parts.offsets.snapshot().items()
        }
        for group in parts.clients.consumer_groups:  # One that has consumed nothing has no offset.
            members = parts.clients.consumers(group)
            if members is not None and members.message_model is MessageModel.CLUSTERING:
                for topic in members.subscriptions:
                    offsets.setdefault((group, topic), {})
        for (group, topic), committed in sorted(offsets.items()):
            config = parts.topics.get(topic)
            if is_broker_group(group) or is_broker_topic(topic) or config is None:
                continue
            left = 0
            for queue_id in committed.keys() | range(config.read_queues):
                start = max(committed.get(queue_id, 0), parts.store.min_offset(topic, queue_id))
                left += max(0, parts.store.max_offset(topic, queue_id) - start)
            if left:
                found.append({"group": group, "topic": topic, "messages": left})
        return found
