"""Topics into Parquet, Delta and Iceberg tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiermq.pipeline import names_from

if TYPE_CHECKING:
    from tiermq.pipeline.export.job import export

__all__ = ["export"]
__getattr__ = names_from(__name__, {"export": f"{__name__}.job"})
