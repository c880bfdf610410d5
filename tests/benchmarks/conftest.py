"""The benchmarks are a package of the checkout, not of the installed TierMQ: put the checkout on the path."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)
