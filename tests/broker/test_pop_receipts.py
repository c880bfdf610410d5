"""Receipts as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.broker.pop_receipts import Receipt
from tiermq.errors import RequestRefused

NUMBERS = st.integers(0, 2**63 - 1)
RECEIPTS = st.builds(
    Receipt, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.sampled_from("012"), st.text("ab-_1", min_size=1), NUMBERS, NUMBERS
)


@given(RECEIPTS)
def test_a_receipt_is_read_as_it_was_written(receipt: Receipt) -> None:
    assert Receipt.decode(receipt.encode(), 0) == receipt
    without_offset = receipt.encode().rpartition(" ")[0]
    assert Receipt.decode(without_offset, receipt.offset) == receipt


@given(st.text())
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(RequestRefused):
        Receipt.decode("x " + text, 0)


def test_a_receipt_of_rocketmq_is_understood() -> None:
    found = Receipt.decode("5 1700000000000 60000 999 1 broker-a 0 7", 7)
    assert found == Receipt(5, 1_700_000_000_000, 60_000, 999, "1", "broker-a", 0, 7)
    assert found.is_ordered


@given(RECEIPTS, st.lists(st.text("ab1-", min_size=1), min_size=1, max_size=3))
def test_words_after_the_eighth_are_ignored(receipt: Receipt, more: list[str]) -> None:
    assert Receipt.decode(" ".join([receipt.encode(), *more]), 0) == receipt
