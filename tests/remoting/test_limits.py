"""Limits that make no sense are refused."""

from __future__ import annotations

import pytest

from tiermq.errors import BadConfig
from tiermq.remoting.limits import ServerLimits


@pytest.mark.parametrize("values", [{"connections_max": 0}, {"idle_s": -1.0}, {"write_bytes_max": 5}])
def test_a_limit_that_nobody_can_keep_is_refused(values: dict[str, int]) -> None:
    with pytest.raises(BadConfig, match=next(iter(values))):
        ServerLimits(**values)
