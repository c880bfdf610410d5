"""The list of processors."""

from __future__ import annotations

from pathlib import Path

from broker.brokers import running
from tiermq.broker.processors import PROCESSORS


def test_processors_stand_in_the_order_of_their_names() -> None:
    names = [getattr(each, "__name__", "") for each in PROCESSORS]
    assert names == sorted(set(names))


def test_a_broker_has_each_of_them_and_no_code_is_served_twice(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        assert [type(each) for each in broker.processors] == list(PROCESSORS)
        server = broker.parts.server
        served: set[int] = set()
        taken: list[int] = []
        for processor in broker.processors:
            server._handlers.clear()
            server._blocking.clear()
            processor.register(server)
            codes = {*server._handlers, *server._blocking}
            taken += codes & served
            served |= codes
        assert taken == []
