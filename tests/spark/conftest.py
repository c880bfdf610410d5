"""One Spark session for all tests that need one.

Every test that asks for `spark` goes to the same worker of pytest-xdist, so that there is one JVM, not one per worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tiermq.spark.session import get_spark

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores, retries as in a cluster. C1 alone starts faster, and tests do not run long enough to earn C2."""
    here = tmp_path_factory.mktemp("spark")
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    session = get_spark(
        "local[2]",
        app="tests",
        conf={
            "spark.driver.extraJavaOptions": options,
            "spark.driver.memory": "1g",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(here / "warehouse"),
            "spark.local.dir": str(here / "local"),
            "spark.sql.streaming.checkpointLocation": str(here / "checkpoints"),
        },
    )
    yield session
    session.stop()
