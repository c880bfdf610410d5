"""Small files and old versions of exported tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiermq.pipeline import names_from

if TYPE_CHECKING:
    from tiermq.pipeline.maintain.job import maintain

__all__ = ["maintain"]
__getattr__ = names_from(__name__, {"maintain": f"{__name__}.job"})
