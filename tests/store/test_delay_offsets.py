"""The file that says how far delayed messages were delivered."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import StoreDamaged
from tiermq.store.delay_offsets import FILE, decode_delay_offsets, decode_delays_ms, encode_delay_offsets

GOLDEN = Path(__file__).parent.parent / "golden" / "rocketmq-5.3.3-clean" / "store" / "config" / FILE


@given(st.dictionaries(st.integers(1, 100), st.integers(0, 2**63 - 1)), st.integers(0, 2**40))
def test_offsets_survive_their_file(offsets: dict[int, int], counter: int) -> None:
    assert decode_delay_offsets(encode_delay_offsets(offsets, counter, 5)) == (offsets, counter)


def test_levels_are_bare_numbers_as_the_real_broker_writes_them() -> None:
    assert encode_delay_offsets({3: 12, 1: 7}, 2, 9) == (
        b'{"dataVersion":{"counter":2,"stateVersion":0,"timestamp":9},"offsetTable":{1:7,3:12}}'
    )


def test_the_file_of_a_real_broker_is_understood() -> None:
    offsets, _counter = decode_delay_offsets(GOLDEN.read_bytes())
    assert all(level >= 1 and offset >= 0 for level, offset in offsets.items())


def test_quoted_levels_and_a_missing_version_are_understood() -> None:
    assert decode_delay_offsets(b'{"offsetTable":{"1":5}}') == ({1: 5}, 0)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"offsetTable":[]}', b'{"offsetTable":{"x":1}}', b'{"offsetTable":{1:"a"}}', b"{1"]
)
def test_what_is_no_such_file_is_damage(data: bytes) -> None:
    with pytest.raises(StoreDamaged, match=FILE):
        decode_delay_offsets(data)


@pytest.mark.parametrize("level", ["--3", "-", "1" * 5000])
def test_a_level_that_is_no_number_is_damage(level: str) -> None:
    with pytest.raises(StoreDamaged):
        decode_delay_offsets(f'{{"offsetTable":{{"{level}":7}}}}'.encode())


def test_delays_are_written_beside_the_offsets_and_may_be_absent() -> None:
    data = encode_delay_offsets({1: 7}, 3, 5, (1000, 60_000))
    assert decode_delays_ms(data) == (1000, 60_000)
    assert decode_delay_offsets(data) == ({1: 7}, 3)
    assert decode_delays_ms(encode_delay_offsets({1: 7}, 3, 5)) == ()


@pytest.mark.parametrize("reported", ["7", '["1s"]', "[-1]", "[true]", "{}", "null"])
def test_delays_that_are_none_count_for_nothing(reported: str) -> None:
    assert decode_delays_ms(b'{"offsetTable":{},"delayLevelsMs":%b}' % reported.encode()) == ()
