"""Every byte of a tier, read and checked, and repaired if asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiermq.pipeline import names_from

if TYPE_CHECKING:
    from tiermq.pipeline.verify.job import verify

__all__ = ["verify"]
__getattr__ = names_from(__name__, {"verify": f"{__name__}.job"})
