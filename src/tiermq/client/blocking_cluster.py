"""BlockingCluster: a cluster for code without a loop, such as a task of Spark. A thread of its own runs one.

    with BlockingCluster(Access("127.0.0.1:9876")) as cluster:
        route = cluster.run(cluster.client.route("orders"))

Any thread may ask. Nothing is connected before it is needed.
"""

from __future__ import annotations

from collections.abc import Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from tiermq.client.access import Access
from tiermq.client.cluster_client import ClusterClient
from tiermq.remoting.loop_thread import LoopThread

T = TypeVar("T")


class BlockingCluster:
    """See the module."""

    def __init__(self, access: Access) -> None:
        """Raises BadConfig for an access that cannot be."""
        self._thread = LoopThread("cluster-client")
        try:
            self.client: ClusterClient = self._thread.call(access.client)
        except BaseException:
            self._thread.stop()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work gives, when it is done."""
        return self._thread.run(work)

    def later(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """The same without waiting for it."""
        return self._thread.submit(work)

    def close(self) -> None:
        """Close all connections. Twice does no harm."""
        if self._thread.is_running:
            self._thread.run(self.client.__aexit__(None, None, None))
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
