"""The options of `tiermq serve --read-only`: which broker's history is read, and where its small files are."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tiermq.broker.settings_file import FileSettings
from tiermq.errors import BadConfig
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.queue.segments import TierScope, list_tier
from tiermq.tier.tier_config import TierConfig


def prepare_reader(options: dict[str, Any], file: FileSettings, running: ExitStack) -> None:
    """Fill in what the options of a read-only broker leave open; without a directory it gets one that `running`
    removes. Raises BadConfig, and TierError when the tier cannot be read.
    """
    url = options["tier"] or TierConfig(**file.tier).url
    if not url:
        raise BadConfig("--read-only: expected a tier to read from, found none: give --tier")
    if (options["namesrv"] or file.broker.get("namesrv_addr")) and not int(str(file.broker.get("broker_id", 0))):
        raise BadConfig(
            "--read-only: expected a --broker-id above 0, found none: at a name server of a cluster this broker is one "
            "more slave of the broker that it reads, and each needs an id of its own. Without --namesrv it runs a name "
            "server of its own"
        )
    cluster, name = file.broker.get("broker_cluster_name"), options["name"] or file.broker.get("broker_name")
    options["name"], file.broker["broker_cluster_name"] = _found(url, name, cluster)
    file.broker["read_only"] = True
    if options["directory"] is None:
        directory = tempfile.mkdtemp(prefix="tiermq-reader-")
        running.callback(shutil.rmtree, directory, ignore_errors=True)
        options["directory"] = Path(directory)


def _found(url: str, name: str | None, cluster: str | None) -> tuple[str, str]:
    """Name and cluster of the broker whose history is there. Raises BadConfig."""
    driver = open_driver(url, reads=True)
    try:
        brokers = list_tier(driver, TierScope()).brokers
    finally:
        driver.close()
    fitting = [(home, each) for home, each in brokers if name in (None, each) and cluster in (None, home)]
    if len(fitting) == 1:
        [(home, each)] = fitting
        return each, home
    there = ", ".join(f"{each} of {home}" for home, each in brokers) or "none"
    wanted = "one broker" if name is None else f"the history of broker {name}" + (f" of {cluster}" if cluster else "")
    raise BadConfig(f"{url}: expected {wanted}, found {there}: give --name, and --cluster where two have the same")
