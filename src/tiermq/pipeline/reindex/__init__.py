"""The key index of history that has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiermq.pipeline import names_from

if TYPE_CHECKING:
    from tiermq.pipeline.reindex.job import reindex

__all__ = ["reindex"]
__getattr__ = names_from(__name__, {"reindex": f"{__name__}.job"})
