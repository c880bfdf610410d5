"""What the drivers' tests share: a real S3 server that is started once, and asserts that explain themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tier.driver.conformance")

from servers.seaweedfs import SeaweedFS, Unavailable  # noqa: E402 - after the registration above


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
