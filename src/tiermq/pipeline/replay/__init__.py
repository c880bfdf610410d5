"""A range of history back into topics of a store directory, or of running brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiermq.pipeline import names_from

if TYPE_CHECKING:
    from tiermq.pipeline.replay.job import replay
    from tiermq.pipeline.replay.message import ReplayMessage

__all__ = ["ReplayMessage", "replay"]
__getattr__ = names_from(__name__, {"ReplayMessage": f"{__name__}.message", "replay": f"{__name__}.job"})
