"""Local stores into a tier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiermq.pipeline import names_from

if TYPE_CHECKING:
    from tiermq.pipeline.offload.job import offload

__all__ = ["offload"]
__getattr__ = names_from(__name__, {"offload": f"{__name__}.job"})
