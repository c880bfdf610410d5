"""Whether there is any history where a job was told to look: an empty tier is more often a wrong address than news."""

from __future__ import annotations

from tiermq.errors import BadHistory
from tiermq.history.catalog import Catalog
from tiermq.spark.options import SourceOptions


def require_queues(catalog: Catalog, options: SourceOptions) -> None:
    """Raises BadHistory when a tier alone was given and has no queue. A store says by itself whether it is one."""
    if options.tier is not None and not options.stores and not catalog.queues():
        raise BadHistory(
            f"{options.tier}: expected the history of a broker, found none; check the address (`tiermq tier ls` shows "
            "what is there), or offload a store to it first"
        )
