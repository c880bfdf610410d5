"""Two brokers at one name server, each with four queues of the topic `orders`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tiermq
from tiermq.testing import LocalBroker
from waiting import until


@contextmanager
def broker_pair(directory: Path) -> Iterator[tuple[LocalBroker, LocalBroker]]:
    """They are named left and right."""
    right = LocalBroker(directory / "right", broker_name="right")
    with LocalBroker(directory / "left", broker_name="left") as left:
        right._name_server = left._name_server
        try:
            right.start()
            for each in (left, right):
                each.create_topic("orders")
            with tiermq.connect(left.name_server) as cluster:

                def brokers_in_route() -> int:
                    route = cluster._run(cluster._inner.session.client.find_route("orders"))
                    return 0 if route is None else len(route.addresses)

                until(lambda: brokers_in_route() == 2)
            yield left, right
        finally:
            right._name_server = None  # The other one's, which ends it.
            right.stop()
