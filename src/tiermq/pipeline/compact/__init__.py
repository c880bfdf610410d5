"""Fewer and larger objects, with the same history in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiermq.pipeline import names_from

if TYPE_CHECKING:
    from tiermq.pipeline.compact.job import compact

__all__ = ["compact"]
__getattr__ = names_from(__name__, {"compact": f"{__name__}.job"})
