"""Offset ids and unique keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.damage import attempt, damaged
from fuzz.records import HOSTS
from message.unique_keys import UniqueKey, decode_unique_key
from simulation.manual_clock import ManualClock
from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.message.hosts import encode_host
from tiermq.message.ids import (
    MessageId,
    UniqueKeyGenerator,
    decode_message_id,
    encode_message_id,
    month_start_ms,
)

OFFSETS = st.integers(0, (1 << 63) - 1)
CHINA = timezone(timedelta(hours=8))


def milliseconds(*moment: int, zone: timezone = UTC) -> int:
    year, month, day, *clock = moment
    hour, minute, second, microsecond = [*clock, 0, 0, 0, 0][:4]
    return int(datetime(year, month, day, hour, minute, second, microsecond, zone).timestamp() * 1000)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("192.168.1.10:10911", "C0A8010A00002A9F0000000000000400"),
        ("[::1]:10911", "0000000000000000000000000000000100002A9F0000000000000400"),
    ],
)
def test_an_offset_id_is_host_port_and_offset_in_upper_case(host: str, expected: str) -> None:
    assert encode_message_id(host, 1024) == expected
    assert decode_message_id(expected) == MessageId(host, 1024)
    assert decode_message_id(expected.lower()) == MessageId(host, 1024)
    assert str(MessageId(host, 1024)) == expected


@given(HOSTS, OFFSETS)
def test_offset_ids_survive_a_round_trip(host: str, offset: int) -> None:
    decoded = decode_message_id(encode_message_id(host, offset))
    assert (encode_host(decoded.store_host), decoded.physical_offset) == (encode_host(host), offset)


def test_a_negative_offset_has_no_id() -> None:
    with pytest.raises(IllegalMessage, match="-1"):
        encode_message_id("1.2.3.4:1", -1)


@given(damaged(st.builds(encode_message_id, HOSTS, OFFSETS).map(str.encode)))
def test_damaged_ids_are_refused_or_read_as_what_they_say(pair: tuple[bytes, bytes]) -> None:
    text = pair[1].decode("latin-1")
    decoded = attempt(decode_message_id, text)
    assert isinstance(decoded, CorruptRecord) or str(decoded) == text.upper()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "zz",
        "C0A8010A00002A9F000000000000040",
        "C0A8010A00002A9F00000000000004000",
        "C0A8010A00002A9F 000000000004 00",
        "00002A9F 0000 0000 0000 0400    ",
        "C0A8010A00012A9F0000000000000400",
        "C0A8010A00002A9FF000000000000400",
        "C0A8010A00002A9F00000000000004٠0",
    ],
)
def test_what_is_no_offset_id_is_refused(text: str) -> None:
    with pytest.raises(CorruptRecord, match="offset id"):
        decode_message_id(text)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("AC1F0B01327B5B2133B120D8340B3D7D", (2017, 3, 7, 9, 4, 0, 11000)),
        ("AC1F0B01696C5B2133B1222866B409C9", (2017, 3, 7, 15, 11, 13, 76000)),
    ],
)
def test_a_java_clients_unique_key_reports_when_and_where_it_was_made(text: str, moment: tuple[int, ...]) -> None:
    key = decode_unique_key(text)
    assert (key.address, key.process_hash) == ("172.31.11.1", 0x5B2133B1)
    assert key.process_id == int(text[8:12], 16)
    assert key.counter == int(text[-4:], 16)
    assert month_start_ms(milliseconds(2017, 3, 20, zone=CHINA), CHINA) + key.since_month_start_ms == milliseconds(
        *moment, zone=CHINA
    )


def test_a_generated_key_has_every_part_in_its_place() -> None:
    clock = ManualClock(milliseconds(2024, 2, 29, 12))
    generator = UniqueKeyGenerator(
        "10.0.0.7", clock=clock, process_id=lambda: 0x12345, process_hash=lambda: 0xCAFEBABE, zone=UTC
    )
    keys = [decode_unique_key(generator.next_key()) for _ in range(2)]
    since_ms = 28 * 86_400_000 + 12 * 3_600_000
    assert keys == [UniqueKey("10.0.0.7", 0x2345, 0xCAFEBABE, since_ms, counter) for counter in (0, 1)]


def test_the_last_days_of_a_month_do_not_overflow_the_key() -> None:
    clock = ManualClock(milliseconds(2024, 3, 31, 23, 59, 59))
    text = UniqueKeyGenerator(clock=clock, zone=UTC).next_key()
    since_ms = decode_unique_key(text).since_month_start_ms
    assert since_ms == 31 * 86_400_000 - 1000 > (1 << 31)
    assert len(text) == 32


def test_a_new_month_starts_from_zero_and_a_clock_set_back_stays_there() -> None:
    clock = ManualClock(milliseconds(2024, 3, 31, 23, 59, 59))
    generator = UniqueKeyGenerator(clock=clock, zone=UTC)
    generator.next_key()
    clock.advance_ms(1000)
    assert decode_unique_key(generator.next_key()).since_month_start_ms == 0
    clock.advance_ms(-500)
    assert decode_unique_key(generator.next_key()).since_month_start_ms == 0


def test_the_counter_wraps_and_ipv6_keys_are_longer() -> None:
    generator = UniqueKeyGenerator("[::1]", clock=ManualClock(), zone=UTC)
    keys = [generator.next_key() for _ in range(65537)]
    assert {len(key) for key in keys} == {56}
    assert len(set(keys)) == 65536
    assert keys[0] == keys[-1]
    assert decode_unique_key(keys[0]).address == "[::1]"


def test_a_forked_process_never_repeats_its_parents_keys() -> None:
    process_ids = iter([1, 1, 1, 2, 2, 2])
    hashes = iter([100, 200])
    generator = UniqueKeyGenerator(
        clock=ManualClock(), process_id=lambda: next(process_ids), process_hash=lambda: next(hashes), zone=UTC
    )
    keys = [decode_unique_key(generator.next_key()) for _ in range(4)]
    assert [(key.process_id, key.process_hash) for key in keys] == [(1, 100), (1, 100), (2, 200), (2, 200)]


@given(st.integers(0, 4_000_000_000_000))
def test_a_month_starts_on_its_first_day_in_the_given_zone(now_ms: int) -> None:
    start = datetime.fromtimestamp(month_start_ms(now_ms, CHINA) // 1000, CHINA)
    now = datetime.fromtimestamp(now_ms // 1000, CHINA)
    assert (start.year, start.month) == (now.year, now.month)
    assert (start.day, start.hour, start.minute, start.second) == (1, 0, 0, 0)


def test_without_a_zone_months_are_those_of_this_machine() -> None:
    now_ms = milliseconds(2024, 3, 15)
    start = datetime.fromtimestamp(month_start_ms(now_ms) // 1000).astimezone()
    assert (start.month, start.day, start.hour) == (3, 1, 0)
