"""What is too old or too much leaves the tier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiermq.pipeline import names_from

if TYPE_CHECKING:
    from tiermq.pipeline.expire.job import expire

__all__ = ["expire"]
__getattr__ = names_from(__name__, {"expire": f"{__name__}.job"})
