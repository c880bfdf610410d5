"""The kernel in pure Python: everything that `tiermq.kernel` exports, in the form that always works."""

from __future__ import annotations

from tiermq.kernel.tails import QueueTail, Segments, Tail

__all__ = ["QueueTail", "Segments", "Tail"]
