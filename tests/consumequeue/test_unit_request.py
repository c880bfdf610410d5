"""Requests are values, and outcomes tell what was written."""

from __future__ import annotations

import dataclasses

import pytest

from tiermq.consumequeue.unit_request import UnitRequest


def test_a_request_is_one_message_without_a_bit_map_unless_it_says_more_and_cannot_change() -> None:
    request = UnitRequest(1024, 123, 7, 5, 1_700_000_000_000)
    assert (request.batch_size, request.bit_map) == (1, b"")
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.queue_offset = 6  # type: ignore[misc]
