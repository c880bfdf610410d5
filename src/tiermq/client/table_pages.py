"""A broker's own tables over the wire, of TierMQ and of RocketMQ alike; long ones in pages, as RocketMQ 5.5 does.

    state = await read_broker_state(cluster, "10.0.0.7:10911")        {"topics": b'{"dataVersion":…', …}

The requests are those with which RocketMQ's slaves follow their master; accounts must be an administrator's. A frame
holds some 35,000 groups. Brokers that know no pages respond with all of them. Request modes and filters have no such
request in RocketMQ 4.9, and are not read.
Cost: five requests, and one more for each further PAGE_ENTRIES topics or groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiermq.client.cluster_client import TIMEOUT_S, ClusterClient
from tiermq.errors import BadConfig, RemotingError
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.json_dialect import as_int, decode_object, encode_body, object_in
from tiermq.settings import read_properties
from tiermq.tier.metadata.broker_state import DELAY_OFFSETS, GROUPS, OFFSETS, SETTINGS, TOPICS, encode_settings

PAGED: dict[int, tuple[str, str]] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: ("Topic", "topicConfigTable"),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ("Group", "subscriptionGroupTable"),
}
REQUESTS = {
    TOPICS.name: RequestCode.GET_ALL_TOPIC_CONFIG,
    GROUPS.name: RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    OFFSETS.name: RequestCode.GET_ALL_CONSUMER_OFFSET,
    DELAY_OFFSETS.name: RequestCode.GET_ALL_DELAY_OFFSET,
}
PAGE_ENTRIES = 5_000
RESTARTS_MAX = 20


class TablePages:
    """A table that is asked for in pages: the fields of the next request, and all answers together."""

    def __init__(self, code: int) -> None:
        """`code`: any request of a whole table; those without pages are whole with the first answer."""
        noun, self._name = PAGED.get(code, ("", ""))
        self._seq, self._most, self._total = f"{noun.lower()}Seq", f"max{noun}Num", f"total{noun}Num"
        self._document: dict[str, Any] = {}
        self._restarts = 0
        self.is_whole = False
        self.body = b""

    @property
    def fields(self) -> dict[str, Any]:
        if not self._name:
            return {}
        known = self._document.get(self._name, {})
        version = {"dataVersion": encode_body(self._document["dataVersion"]).decode()} if known else {}
        return {self._seq: str(len(known)), self._most: str(PAGE_ENTRIES), **version}

    def take(self, ext: Mapping[str, str], body: bytes) -> None:
        """An answer. Raises RequestRefused for one that is no table, RemotingError for a table that changes always."""
        total = ext.get(self._total)
        if total is None:
            self.body, self.is_whole = body, True
            return
        page = decode_object(body)
        entries = object_in(page.get(self._name), self._name)
        known = self._document.get(self._name)
        if not known and not entries and as_int(total) > 0:
            raise RemotingError(f"{self._name}: expected {total[:20]} entries as it says, found a page without any")
        if known and page.get("dataVersion") == self._document.get("dataVersion"):
            entries = {**known, **entries}
            self.is_whole = len(entries) == len(known)  # Nothing more comes.
        elif known:
            self._restarts += 1
            if self._restarts > RESTARTS_MAX:
                raise RemotingError(f"{self._name}: expected a table at rest, found another version of it at each page")
        self._document = {**page, self._name: entries}
        self.is_whole = self.is_whole or len(entries) >= as_int(total)
        if self.is_whole:
            self.body = body if len(entries) == len(page[self._name]) else encode_body(self._document)


async def ask_table(cluster: ClusterClient, address: str, code: RequestCode, *, timeout_s: float = TIMEOUT_S) -> bytes:
    """A whole table of a broker, in pages where there are any. Raises RemotingError."""
    pages = TablePages(code)
    while not pages.is_whole:
        answer = await cluster.ask(address, code, timeout_s=timeout_s, **pages.fields)
        pages.take(answer.ext, bytes(answer.body))
    return pages.body


async def read_broker_state(cluster: ClusterClient, address: str) -> dict[str, bytes]:
    """The tables of the broker at the address, for `BrokerStateWriter`; settings without accounts and secrets.

    Raises RemotingError.
    """
    found = {}
    for name, code in REQUESTS.items():
        if body := await ask_table(
            cluster, address, code
        ):  # RocketMQ has no delay offsets before the first delayed message.
            found[name] = body
    body = bytes((await cluster.ask(address, RequestCode.GET_BROKER_CONFIG)).body)
    try:
        found[SETTINGS.name] = encode_settings(read_properties(body.decode()))
    except (UnicodeError, BadConfig) as error:
        raise RemotingError(
            f"{address}: expected the broker's settings, found some that cannot be read: {error}"
        ) from error
    return found
