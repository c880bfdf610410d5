"""Batches taken apart: both twins agree, with each other and with the general codec."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.kernel_world import KERNELS
from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.message.client_batch import BatchElement, encode_client_batch

FIELDS = (
    "topic", "body", "queue_id", "encoded_properties", "flag", "sys_flag", "born_timestamp_ms", "born_host",
    "reconsume_times", "prepared_transaction_offset", "waits_for_store", "needs_offset",
)  # fmt: skip
PROPERTIES = st.lists(
    st.sampled_from(
        [b"K\x01v\x02", b"WAIT\x01true\x02", b"WAIT\x01false\x02", b"A\x01b", b"INNER_NUM\x013\x02", b"__CRC32#\x01"]
    ),
    max_size=2,
).map(b"".join)
ELEMENTS = st.lists(
    st.builds(BatchElement, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=9), PROPERTIES), max_size=4
)


def envelope(kernel: ModuleType, body: bytes, properties: bytes = b"", sys_flag: int = 0) -> Any:
    return kernel.Message(
        "T", body, 3, encoded_properties=properties, flag=99, sys_flag=sys_flag, born_timestamp_ms=5,
        born_host=b"\x7f\0\0\1\0\0\0\1", reconsume_times=2,
    )  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS)
@given(ELEMENTS, PROPERTIES, st.sampled_from([0, 0x80]))
def test_each_element_is_the_message_that_the_constructor_makes(
    kernel: ModuleType, elements: list[BatchElement], shared: bytes, sys_flag: int
) -> None:
    whole = envelope(kernel, encode_client_batch(elements), shared, sys_flag)
    made = kernel.messages_of_batch(whole)
    shared = whole.encoded_properties  # A checksum of properties is the store's to write, and is not kept.
    assert len(made) == len(elements)
    for found, element in zip(made, elements, strict=True):
        own = element.encoded_properties
        apart = b"\x02" if own and shared and not own.endswith(b"\x02") else b""
        expected = kernel.Message(
            "T", element.body, 3, encoded_properties=own + apart + shared, flag=element.flag, sys_flag=sys_flag,
            born_timestamp_ms=5, born_host=b"\x7f\0\0\1\0\0\0\1", reconsume_times=2,
        )  # fmt: skip
        for name in FIELDS:
            assert getattr(found, name) == getattr(expected, name), name


GOOD = encode_client_batch([BatchElement(1, b"one", b"K\x01v\x02"), BatchElement(2, b"two", b"")])


@pytest.mark.parametrize("kernel", KERNELS)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_a_damaged_batch_is_refused_or_another_batch_but_never_anything_else(
    kernel: ModuleType, at: int, value: int
) -> None:
    damaged = GOOD[:at] + bytes([value]) + GOOD[at + 1 :]
    try:
        made = kernel.messages_of_batch(envelope(kernel, damaged))
    except (CorruptRecord, IllegalMessage):
        return
    assert sum(len(each.body) + len(each.encoded_properties) + 22 for each in made) == len(GOOD)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_cut_batch_is_refused_at_every_length(kernel: ModuleType) -> None:
    first = len(encode_client_batch([BatchElement(1, b"one", b"K\x01v\x02")]))
    for length in range(1, len(GOOD)):
        if length != first:
            with pytest.raises(CorruptRecord):
                kernel.messages_of_batch(envelope(kernel, GOOD[:length]))


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_element_that_no_record_can_hold_refuses_the_batch(kernel: ModuleType) -> None:
    with pytest.raises(IllegalMessage):
        kernel.messages_of_batch(envelope(kernel, encode_client_batch([BatchElement(0, b"x", b"A\x01\0\x02")])))
