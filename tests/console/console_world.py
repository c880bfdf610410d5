"""A broker with a tier, and a console over it, over its files, or over both, asked by a real HTTP client."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tiermq.client.cluster_client import Access
from tiermq.console.sources import SourcePlace, Sources
from tiermq.console.web.server import ConsoleServer
from tiermq.history.scan_values import StorePlace
from tiermq.testing import LocalBroker

ORDERS, QUEUES = 40, 2


@dataclass(slots=True)
class Answer:
    """What the console answered."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Browser:
    """Follows no redirects; keeps the cookie, as a browser does."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""

    def ask(self, method: str, path: str, body: bytes | None = None, host: str | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        sent = {"Host": host or f"127.0.0.1:{self.port}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        if self.cookie:
            sent["Cookie"] = self.cookie
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        if "set-cookie" in found:
            self.cookie = found["set-cookie"].partition(";")[0]
        text = answer.read().decode()
        connection.close()
        return Answer(answer.status, found, text)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, None, **headers)

    def api(self, name: str, **values: object) -> Any:
        answer = self.get(f"/api/{name}?{urlencode(values)}")
        assert answer.status == 200, answer.text
        return answer.json

    def token(self, path: str = "/login") -> str:
        found = re.search(r'name="token" value="(\w+)"', self.get(path).text)
        assert found is not None
        return found[1]

    def submit(self, path: str, **fields: str) -> Answer:
        return self.ask("POST", path, urlencode(fields).encode(), Content_Type="application/x-www-form-urlencoded")


@contextmanager
def orders_broker(directory: Path, **settings: Any) -> Iterator[LocalBroker]:
    """A broker whose first orders are in the tier and the last are not; the group `audit` has consumed some."""
    with LocalBroker(directory / "store", tier=f"file://{directory}/tier", **settings) as broker:
        broker.create_topic("orders", queues=QUEUES)
        for number in range(ORDERS):
            send_order(broker, number)
        assert broker.broker.parts.tiered is not None
        assert broker.broker.parts.tiered.flush_to_tier()
        send_order(broker, ORDERS)
        broker.broker.parts.offsets.commit("audit", "orders", 0, 5)
        broker.broker.parts.offsets.flush()
        yield broker


def send_order(broker: LocalBroker, number: int) -> None:
    body = json.dumps({"order": number}).encode()
    tags = "paid" if number % 4 else "open"
    broker.send("orders", body, queue_id=number % QUEUES, keys=[f"order-{number}"], tags=tags)


def place_of(
    directory: Path, broker: LocalBroker | None = None, *, store: bool = True, tier: bool = True
) -> SourcePlace:
    stores = (StorePlace(str(directory / "store")),) if store else ()
    access = None if broker is None else Access(broker.name_server)
    return SourcePlace(access, f"file://{directory}/tier" if tier else None, stores)


@contextmanager
def console(place: SourcePlace, **options: Any) -> Iterator[Browser]:
    with console_of(Sources(place), **options) as browser:
        yield browser


@contextmanager
def console_of(sources: Sources, **options: Any) -> Iterator[Browser]:
    server = ConsoleServer(sources, port=0, **options)
    server.start()
    try:
        yield Browser(server.port)
    finally:
        server.stop()
