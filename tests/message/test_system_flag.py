"""The bits of SYSFLAG."""

from __future__ import annotations

import pytest

from compressed_flag import with_compression
from tiermq.message.system_flag import (
    CompressionType,
    TransactionType,
    compression_type_number,
    enters_consume_queue,
    is_compressed,
    is_inner_batch,
    transaction_type,
    with_host_shapes,
    with_transaction_type,
    without_compression,
)


@pytest.mark.parametrize(
    ("sys_flag", "expected"),
    [
        (0x00, TransactionType.NONE),
        (0xF3, TransactionType.NONE),
        (0x04, TransactionType.PREPARED),
        (0x08, TransactionType.COMMIT),
        (0x0C, TransactionType.ROLLBACK),
        (-1, TransactionType.ROLLBACK),
    ],
)
def test_the_transaction_type_is_in_two_bits(sys_flag: int, expected: TransactionType) -> None:
    assert transaction_type(sys_flag) is expected


def test_changing_the_transaction_type_keeps_all_other_bits() -> None:
    assert with_transaction_type(0x7F5, TransactionType.COMMIT) == 0x7F9


def test_only_plain_and_committed_records_enter_a_consume_queue() -> None:
    assert [kind for kind in TransactionType if enters_consume_queue(kind)] == [
        TransactionType.NONE,
        TransactionType.COMMIT,
    ]


def test_the_java_clients_zlib_bodies_have_flag_0x301() -> None:
    flag = with_compression(0, CompressionType.ZLIB)
    assert flag == 0x301
    assert is_compressed(flag)
    assert compression_type_number(flag) == CompressionType.ZLIB
    assert without_compression(flag | 0x10) == 0x10
    assert not is_compressed(without_compression(flag))


def test_host_bits_follow_the_addresses_even_when_a_client_set_them() -> None:
    assert with_host_shapes(0x30 | 0x01, born_v6=False, store_v6=False) == 0x01
    assert with_host_shapes(0x01, born_v6=True, store_v6=False) == 0x11
    assert with_host_shapes(0x01, born_v6=False, store_v6=True) == 0x21


def test_an_inner_batch_is_marked_by_its_own_bit() -> None:
    assert is_inner_batch(0x80)
    assert not is_inner_batch(0x40)
