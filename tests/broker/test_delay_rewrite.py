"""Where delayed messages wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.broker.delay_rewrite import Place, delay_level, delayed
from tiermq.errors import RequestRefused
from tiermq.message.properties import decode_properties
from tiermq.remoting.codes import ResponseCode


@given(st.integers(1, 100), st.integers(1, 20), st.integers(0, 9))
def test_a_level_has_its_queue_and_those_beyond_the_last_are_the_last(level: int, levels: int, queue_id: int) -> None:
    place = delayed(Place("T", queue_id, b"KEYS\x01k\x02DELAY\x01%d\x02" % level), level, levels)
    kept = min(level, levels)
    assert (place.topic, place.queue_id) == ("SCHEDULE_TOPIC_XXXX", kept - 1)
    assert decode_properties(place.properties) == {
        "KEYS": "k",
        "DELAY": str(kept),
        "REAL_TOPIC": "T",
        "REAL_QID": str(queue_id),
    }


@pytest.mark.parametrize(("value", "level"), [(None, 0), ("0", 0), ("3", 3), ("-1", -1), ("18", 18)])
def test_the_level_is_read_from_the_properties(value: str | None, level: int) -> None:
    properties = b"A\x01b\x02" if value is None else b"A\x01b\x02DELAY\x01%b\x02" % value.encode()
    assert delay_level(properties) == level


@pytest.mark.parametrize("value", [b"x", b"1.5", b"-", b"99999999999", b"\xff"])
def test_a_level_that_is_no_number_is_refused(value: bytes) -> None:
    with pytest.raises(RequestRefused, match="delay level") as refused:
        delay_level(b"DELAY\x01%b\x02" % value)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
