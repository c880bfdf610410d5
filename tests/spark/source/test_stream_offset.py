"""Where a stream stands, in a checkpoint."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import ForeignCheckpoint
from tiermq.history.scan_values import HistoryPlace, StorePlace
from tiermq.spark.source.stream_offset import StreamOffset, source_name, stream_lag
from tiermq.tier.names import QueueKey

_NAMES = st.text(st.characters(blacklist_characters="/\x00", blacklist_categories=["Cs"]), min_size=1, max_size=6)
_KEYS = st.builds(QueueKey, *[_NAMES.filter(lambda name: name not in (".", ".."))] * 3, st.integers(0, 99))


@given(st.dictionaries(_KEYS, st.integers(0, 2**63 - 1), max_size=5))
def test_offsets_survive_a_checkpoint_and_equal_ones_are_equal_texts(queues: dict[QueueKey, int]) -> None:
    text = json.dumps(StreamOffset("tier x", queues).as_json())
    again = StreamOffset.of_json(json.loads(text), "tier x")
    assert again.queues == queues
    turned = StreamOffset("tier x", dict(reversed(list(queues.items()))))
    assert json.dumps(turned.as_json()) == text


def test_a_source_is_its_tier_or_its_stores() -> None:
    store = StorePlace("/a", "c", "b")
    assert source_name(HistoryPlace("s3://b/p/", (store,))) == source_name(HistoryPlace("s3://b/p"))
    assert source_name(HistoryPlace(None, (store, StorePlace("/0")))) == "store /0, /a"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"source": "tier y", "version": 1}, "expected a checkpoint of tier x, found one of tier y"),
        ({"orders-0": 5}, "found one of something else"),
        ({"source": "tier x", "version": 2}, "version 1, found 2"),
        ({"source": "tier x", "version": 1, "orders": 5}, "cluster/broker/topic/queue"),
        ({"source": "tier x", "version": 1, "c/b/t/0": -1}, "an offset for c/b/t/0"),
        ({"source": "tier x", "version": 1, "c/b/t/0": "5"}, "found '5'"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(document: dict[str, Any], expected: str) -> None:
    with pytest.raises(ForeignCheckpoint) as raised:
        StreamOffset.of_json(document, "tier x")
    assert expected in str(raised.value)


def test_the_lag_of_a_stream_is_what_its_last_batch_left_by_queue() -> None:
    end = {"source": "tier x", "version": 1, "c/b/orders/0": 10}
    latest = {"source": "tier x", "version": 1, "c/b/orders/0": 25, "c/b/orders/1": 5}
    other = {"endOffset": "17", "latestOffset": None}
    lag = stream_lag({"sources": [{"endOffset": json.dumps(end), "latestOffset": json.dumps(latest)}, other]})
    assert lag.queues == {"c/b/orders/0": 15, "c/b/orders/1": 5}
    assert lag.total == 20
    assert lag.as_metrics() == {
        "minOffsetsBehindLatest": 5.0,
        "maxOffsetsBehindLatest": 15.0,
        "avgOffsetsBehindLatest": 10.0,
    }
    assert stream_lag(None).total == 0
