"""A route table so simple that it can be checked by reading: flat lists of facts, searched from the front each time.

It knows masters and slaves, versions, expiry, channels and permissions, not acting masters.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiermq.namesrv.route_table import Registration
from tiermq.namesrv.topic_config import DataVersion


@dataclass
class Presence:
    """One address of one broker."""

    name: str
    broker_id: int
    address: str
    cluster: str
    version: DataVersion
    channel: int
    timeout_ms: int
    seen_ms: int


@dataclass
class Served:
    """One topic at one broker."""

    topic: str
    name: str
    queues: int
    perm: int


class RouteModel:
    def __init__(self) -> None:
        self.present: list[Presence] = []
        self.served: list[Served] = []

    def register(self, reported: Registration, channel: int, now_ms: int) -> str:
        """accepted, refused or outranked."""
        mine = [each for each in self.present if each.name == reported.broker_name]
        same_id = next((each for each in mine if each.broker_id == reported.broker_id), None)
        same_address = next((each for each in mine if each.address == reported.address), None)
        if same_id is None and len(reported.topics) == 1:
            return "refused"
        replaces = same_id is not None and same_id is not same_address
        if replaces and same_id.version.state_version > reported.data_version.state_version:  # type: ignore[union-attr]
            self.present = [each for each in self.present if each is not same_address]
            return "outranked"
        known = same_address.version if same_address is not None and same_address.cluster == reported.cluster else None
        is_news = same_id is None or known != reported.data_version
        self.present = [each for each in self.present if each is not same_id and each is not same_address]
        self.present.append(
            Presence(
                reported.broker_name,
                reported.broker_id,
                reported.address,
                reported.cluster,
                reported.data_version,
                channel,
                reported.timeout_ms,
                now_ms,
            )
        )
        if reported.broker_id == 0:
            for topic, queue in reported.topics.items():
                old = self.find(topic, reported.broker_name)
                if old is None:
                    self.served.append(Served(topic, reported.broker_name, queue.write_queues, queue.perm))
                elif is_news:
                    old.queues, old.perm = queue.write_queues, queue.perm
        return "accepted"

    def find(self, topic: str, name: str) -> Served | None:
        return next((each for each in self.served if (each.topic, each.name) == (topic, name)), None)

    def heartbeat(self, name: str, address: str, cluster: str, now_ms: int) -> None:
        for each in self.present:
            if (each.name, each.address, each.cluster) == (name, address, cluster):
                each.seen_ms = now_ms

    def leave(self, gone: list[Presence]) -> None:
        self.present = [each for each in self.present if each not in gone]
        names = {each.name for each in self.present}
        self.served = [each for each in self.served if each.name in names]

    def expired(self, now_ms: int) -> list[Presence]:
        return [each for each in self.present if now_ms - each.seen_ms > each.timeout_ms]

    def route(self, topic: str) -> dict[str, tuple[dict[int, str], int, int]]:
        """By broker name: addresses, write queues, permission."""
        return {
            served.name: (
                {each.broker_id: each.address for each in self.present if each.name == served.name},
                served.queues,
                served.perm,
            )
            for served in self.served
            if served.topic == topic
        }
