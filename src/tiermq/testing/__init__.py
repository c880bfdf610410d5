"""A broker inside a test: `tiermq_broker`, a pytest fixture, and its parts.

May import anything but the command line. Nothing else of the package imports it; pytest is imported by the
plugin alone, so that a broker can be had in any other test framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiermq.testing.local_broker import LocalBroker, MovableClock

__all__ = ["LocalBroker", "MovableClock"]


def __getattr__(name: str) -> Any:
    """Imported when asked for: the plugin is loaded by every run of pytest, and most use no broker."""
    if name == "LocalBroker":
        from tiermq.testing.local_broker import LocalBroker

        return LocalBroker
    if name == "MovableClock":
        from tiermq.testing.local_broker import MovableClock

        return MovableClock
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
