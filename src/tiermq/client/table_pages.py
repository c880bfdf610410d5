"""TablePages: tables of topics and groups that are asked for in pages, as RocketMQ 5.5 does.

A frame holds some 35,000 groups. Brokers that know no pages respond with all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiermq.client.cluster_client import TIMEOUT_S, ClusterClient
from tiermq.errors import RemotingError
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.json_dialect import as_int, decode_object, encode_body, object_in

PAGED: dict[int, tuple[str, str]] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: ("Topic", "topicConfigTable"),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ("Group", "subscriptionGroupTable"),
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
