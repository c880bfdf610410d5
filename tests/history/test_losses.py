"""A loss says what is missing, why, and what to do."""

from __future__ import annotations

import pytest

from tiermq.errors import DataLoss
from tiermq.history.scan_values import Loss, LossReason, corrupt, data_loss, describe
from tiermq.tier.names import QueueKey

KEY = QueueKey("c", "broker-a", "orders", 3)


@pytest.mark.parametrize("reason", list(LossReason))
def test_every_reason_comes_with_the_queue_the_offsets_and_advice(reason: LossReason) -> None:
    error = data_loss([Loss(KEY, 5, 9, reason, "because")])
    assert isinstance(error, DataLoss)
    text = str(error)
    for part in ("broker-a/orders/3", "4 messages, offsets 5 to 9", reason.value, "because", "failOnDataLoss=false"):
        assert part in text
    assert len(text.split(". ")) == 3


def test_many_losses_are_reported_in_a_few_lines() -> None:
    text = str(data_loss(corrupt(KEY, at, at + 1, "damaged") for at in range(100)))
    assert "and 92 more" in text
    assert len(text) < 1200


def test_a_start_without_messages_behind_it_is_one_offset() -> None:
    assert describe(Loss(KEY, 7, 7, LossReason.BEYOND_END)) == "broker-a/orders/3: offset 7: beyond the end"
