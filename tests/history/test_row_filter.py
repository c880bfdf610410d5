"""Which messages a request wants."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.kernel_world import KERNELS
from kernel.record_runs import Run, plain, runs
from tiermq.history.scan_values import RowFilter, ScanRequest
from tiermq.kernel import ColumnRequest
from tiermq.message.properties import encode_properties
from tiermq.message.record import decode_record, encode_record
from tiermq.message.stored_message import StoredMessage


def message(store_timestamp_ms: int = 1000, **properties: str) -> StoredMessage:
    record = encode_record(
        topic="T", body=b"", store_timestamp_ms=store_timestamp_ms, properties=encode_properties(properties)
    )
    return decode_record(record)


def wants(found: StoredMessage, **request: Any) -> bool:
    return RowFilter.of(ScanRequest(**request)).matches(found)


def test_a_request_without_restrictions_wants_everything() -> None:
    assert RowFilter.of(ScanRequest()).takes_everything
    assert not RowFilter.of(ScanRequest(tags=frozenset(["a"]))).takes_everything
    assert wants(message(-5))


def test_times_are_inclusive_on_both_ends() -> None:
    assert [wants(message(ms), begin_ms=10, end_ms=12) for ms in (9, 10, 12, 13)] == [False, True, True, False]


def test_a_tag_is_compared_as_text_not_by_its_hash() -> None:
    # "Aa" and "BB" have one hash in Java.
    assert wants(message(TAGS="Aa"), tags=frozenset(["Aa", "other"]))
    assert not wants(message(TAGS="BB"), tags=frozenset(["Aa"]))
    assert not wants(message(), tags=frozenset(["Aa"]))


def test_a_key_is_a_piece_of_keys_or_the_unique_key() -> None:
    found = message(KEYS="one two", UNIQ_KEY="three")
    assert [wants(found, keys=frozenset([key])) for key in ("one", "two", "three", "tw", "one two", "")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


def test_restrictions_are_joined_by_and() -> None:
    found = message(1000, TAGS="a", KEYS="k")
    assert wants(found, tags=frozenset(["a"]), keys=frozenset(["k"]), begin_ms=1000, end_ms=1000)
    assert not wants(found, tags=frozenset(["a"]), keys=frozenset(["x"]))
    assert not wants(found, tags=frozenset(["a"]), keys=frozenset(["k"]), end_ms=999)


requests = st.builds(
    ScanRequest,
    begin_ms=st.sampled_from([0, 1_700_000_000_000]),
    end_ms=st.sampled_from([ScanRequest().end_ms, 1_700_000_000_000]),
    tags=st.frozensets(st.sampled_from(["a", "a b", "1", "99"]), max_size=2),
    keys=st.frozensets(st.sampled_from(["a", "b", "1", "99"]), max_size=2),
)


@pytest.mark.parametrize("kernel", KERNELS)
@given(run=runs, request_=requests)
def test_the_kernel_filters_as_this_filter_does(kernel: Any, run: Run, request_: ScanRequest) -> None:
    rows = RowFilter.of(request_)
    found = kernel.decode_columns(
        bytes(run.buffer),
        run.starts,
        run.sizes,
        ColumnRequest(
            ("commitLogOffset",),
            run.topic.encode(),
            run.queue_id,
            run.log_base,
            begin_ms=rows.begin_ms,
            end_ms=rows.end_ms,
            tags=rows.tags,
            keys=rows.keys,
        ),
    )
    records = [decode_record(run.record(number)) for number in range(len(run.starts))]
    expected = [record.physical_offset for record in records if rows.matches(record)]
    assert plain(found)["commitLogOffset"] == expected
