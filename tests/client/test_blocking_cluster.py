"""A cluster without a loop of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.wire_world import filled
from tiermq.client.access import Access
from tiermq.client.blocking_cluster import BlockingCluster
from tiermq.errors import BadConfig, RemotingError


def test_work_is_done_now_or_later_and_nothing_after_the_end(tmp_path: Path) -> None:
    with filled(tmp_path) as (_, cluster):
        route = cluster.run(cluster.client.route("orders"))
        assert cluster.later(cluster.client.route("orders")).result() == route
        cluster.close()
        cluster.close()
        with pytest.raises(RemotingError, match="stopped"):
            cluster.run(cluster.client.route("orders"))


def test_an_access_that_cannot_be_leaves_no_thread_behind() -> None:
    with pytest.raises(BadConfig):
        BlockingCluster(Access("no address"))
