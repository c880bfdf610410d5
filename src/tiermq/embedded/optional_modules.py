"""Libraries that an extra installs: found, or named with the extra."""

from __future__ import annotations

import importlib.util

from tiermq.errors import TierMQError, install_hint


def require(module: str, extra: str) -> None:
    """Raise TierMQError, which names what to install, when a library is missing."""
    if importlib.util.find_spec(module) is None:
        raise TierMQError(f"this needs {module}, which is not installed: {install_hint(extra)}")


def pyarrow_or_hint() -> None:
    """What every scan needs."""
    for module in ("pyarrow", "numpy", "sqlglot"):
        require(module, "sql")
