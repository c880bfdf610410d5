"""The two boundaries, by the names that users write."""

from __future__ import annotations

import pytest

from tiermq.consumequeue.boundary import Boundary


def test_a_boundary_is_chosen_by_its_name_and_no_other_name_is_taken() -> None:
    assert Boundary("lower") is Boundary.LOWER
    assert Boundary("upper") is Boundary.UPPER
    with pytest.raises(ValueError, match="middle"):
        Boundary("middle")
