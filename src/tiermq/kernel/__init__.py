"""Kernel: the hot loops over bytes, in two implementations of one interface.

`pure.py` is the portable reference; the compiled twin (built from `native/`) is used where it was built, unless
TIERMQ_PURE=1. May import `tiermq.message`. Must not depend on files, threads or configuration.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or os.environ.get("TIERMQ_PURE", "0") not in ("", "0"):
    from tiermq.kernel.pure import *  # noqa: F403

    KERNEL = "pure"
else:
    try:
        from tiermq.kernel.compiled import *  # noqa: F403

        KERNEL = "compiled"
    except ModuleNotFoundError as error:
        if error.name != "tiermq.kernel.compiled":
            raise
        from tiermq.kernel.pure import *  # noqa: F403

        KERNEL = "pure"
