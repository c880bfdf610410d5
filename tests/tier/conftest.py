"""What the tier's tests share: a real S3 server, started once for each process that runs tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from servers.seaweedfs import SeaweedFS, Unavailable


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """A running S3 server with a bucket `history`; where it cannot be had, the tests are skipped with the reason."""
    try:
        server = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    except Unavailable as reason:
        pytest.skip(f"no real S3 server here: {reason}")
    with server:
        server.create_bucket("history")
        yield server
