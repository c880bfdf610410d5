"""Bodies of registrations: both forms, and bytes that are neither."""

from __future__ import annotations

import contextlib
import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import RequestRefused
from tiermq.namesrv import topic_config
from tiermq.namesrv.topic_config import (
    NO_VERSION,
    DataVersion,
    TopicConfig,
    body_checksum,
    decode_register_body,
    encode_register_body,
)

VERSION = DataVersion(1_700_000_000_000, 3)
TOPICS = (TopicConfig("TBW102", 8, 8, 7), TopicConfig("orders", 4, 4))


def compressed(*pieces: bytes, topics: list[bytes]) -> bytes:
    """Version, topics, filter servers, each with its length."""

    def with_length(piece: bytes) -> bytes:
        return struct.pack(">i", len(piece)) + piece

    head, *rest = pieces
    lines = struct.pack(">i", len(topics)) + b"".join(with_length(topic) for topic in topics)
    return zlib.compress(with_length(head) + lines + b"".join(with_length(piece) for piece in rest), 9)


def test_the_plain_form_is_the_one_of_a_5_x_broker() -> None:
    assert json.loads(encode_register_body(TOPICS[:1], VERSION)) == {
        "filterServerList": [],
        "topicConfigSerializeWrapper": {
            "dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 1_700_000_000_000},
            "mappingDataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 1_700_000_000_000},
            "topicConfigTable": {"TBW102": TOPICS[0].to_json()},
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        },
    }


def decoded(
    body: bytes, *, compressed: bool, version: int
) -> tuple[tuple[TopicConfig, ...], DataVersion, tuple[str, ...]]:
    """Topics, version and filter servers."""
    found = decode_register_body(body, compressed=compressed, version=version)
    topics = tuple(found.topics)
    assert len(topics) == found.topic_count
    return topics, found.data_version, found.filter_servers


def test_the_plain_form_reads_back() -> None:
    body = encode_register_body(TOPICS, VERSION)
    assert decoded(body, compressed=False, version=479) == (TOPICS, VERSION, ())


def test_a_broker_before_3_0_11_sends_the_wrapper_alone() -> None:
    wrapper = json.dumps({"topicConfigTable": {"orders": {"perm": 4}}, "dataVersion": {"counter": 1}}).encode()
    body = decoded(wrapper, compressed=False, version=36)
    assert body == ((TopicConfig("orders", perm=4),), DataVersion(0, 1), ())
    assert decoded(wrapper, compressed=False, version=37)[0] == ()


def test_the_compressed_form_is_read_with_attributes_and_filter_servers() -> None:
    lines = [b"TBW102 8 8 7 SINGLE_TAG", b'orders 4 5 6 MULTI_TAG {"queue.type":"BatchCQ", "a b":"c d"}']
    body = compressed(b'{"counter":3,"timestamp":5}', b'["10.0.0.9:1"]', topics=lines)
    assert decoded(body, compressed=True, version=399) == (
        (
            TopicConfig("TBW102", 8, 8, 7),
            TopicConfig("orders", 4, 5, 6, attributes={"queue.type": "BatchCQ", "a b": "c d"}, filter_type="MULTI_TAG"),
        ),
        DataVersion(5, 3),
        ("10.0.0.9:1",),
    )


def test_no_body_is_a_broker_without_topics() -> None:
    assert decoded(b"", compressed=True, version=479) == ((), NO_VERSION, ())


def test_the_checksum_has_no_sign_bit() -> None:
    found = {body_checksum(bytes([each])) for each in range(256)}
    assert all(0 <= each < 2**31 for each in found)
    assert body_checksum(b"123456789") == 0xCBF43926 & 0x7FFFFFFF


def test_a_stream_that_would_fill_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_config, "INFLATED_BYTES_MAX", 10_000)
    with pytest.raises(RequestRefused, match="at most 10000"):
        decode_register_body(zlib.compress(bytes(10_000_000)), compressed=True, version=479)


@pytest.mark.parametrize(
    "line", [b"", b" ", b"orders", b"orders 4 4 6", b"orders 4 x 6 SINGLE_TAG", b"\xff 1 1 1 F", b"t 1 1 1 F {"]
)
def test_a_topic_line_that_is_none_is_refused(line: bytes) -> None:
    with pytest.raises(RequestRefused):
        decoded(compressed(b"{}", b"[]", topics=[line]), compressed=True, version=479)


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_give_a_body_or_a_refusal(data: bytes, packed: bool) -> None:
    for body in (data, zlib.compress(data)):
        with contextlib.suppress(RequestRefused):
            decoded(body, compressed=packed, version=479)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(JSON, JSON, JSON, JSON)
def test_any_document_gives_a_body_or_a_refusal(filters: object, version: object, table: object, one: object) -> None:
    tables = (table, {"orders": one}, {"orders": {"topicName": one, "perm": table, "attributes": version}})
    for topics in tables:
        wrapper = {"dataVersion": version, "topicConfigTable": topics}
        document = {"filterServerList": filters, "topicConfigSerializeWrapper": wrapper}
        with contextlib.suppress(RequestRefused):
            topics, _, _ = decoded(json.dumps(document).encode(), compressed=False, version=479)
            assert all(topic.name for topic in topics)


@given(st.data())
def test_a_damaged_compressed_body_gives_a_body_or_a_refusal(data: st.DataObject) -> None:
    whole = zlib.decompress(compressed(b'{"counter":3}', b"[]", topics=[b"TBW102 8 8 7 SINGLE_TAG", b"o 1 1 6 S {}"]))
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:at] + data.draw(st.binary(max_size=4)) + whole[at + data.draw(st.integers(0, 8)) :]
    with contextlib.suppress(RequestRefused):
        decoded(zlib.compress(damaged), compressed=True, version=479)
