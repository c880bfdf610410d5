"""Which units can be those of messages with one of some tags: by the hash that each unit carries.

A code outside of 32 bits is no hash: it is the delivery time of a delayed message, or the address of an ext unit. Such
a message may have any tag, so it stays. Hashes collide: the rows decide.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import numpy as np

from tiermq.history.unit_array import Bools, UnitArray
from tiermq.message.java_hash import tags_code

_LOW, _HIGH = -(1 << 31), (1 << 31) - 1


def wanted_by_tags(units: UnitArray, tags: AbstractSet[str]) -> Bools:
    """All of them when no tags are asked for."""
    if not tags:
        return np.ones(len(units), dtype=bool)
    codes = np.array(sorted(tags_code(tag) for tag in tags), dtype=np.int64)
    wanted: Bools = np.isin(units.codes, codes) | (units.codes < _LOW) | (units.codes > _HIGH)
    return wanted
