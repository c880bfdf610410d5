"""Tags are sorted out by the hash in each unit; what is no hash stays."""

from __future__ import annotations

import numpy as np

from tiermq.consumequeue.unit import UNIT
from tiermq.message.java_hash import tags_code
from tiermq.tier.queue.unit_array import decode_units, wanted_by_tags


def test_units_stay_whose_code_is_that_of_a_wanted_tag() -> None:
    codes = [tags_code("a"), tags_code("b"), 0, tags_code("c")]
    units = decode_units(b"".join(UNIT.pack(0, 100, code) for code in codes), 0)
    assert wanted_by_tags(units, {"a", "c"}).tolist() == [True, False, False, True]
    assert wanted_by_tags(units, frozenset()).all()


def test_delivery_times_and_ext_addresses_may_be_of_any_tag() -> None:
    units = decode_units(UNIT.pack(0, 100, 1_700_000_000_000) + UNIT.pack(0, 100, -(1 << 40)), 0)
    assert np.all(wanted_by_tags(units, {"a"}))
