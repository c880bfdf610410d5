"""Tag filters."""

from __future__ import annotations

import pytest

from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.message import MessageFilter, TagFilter, encode_blank, encode_record, java_hash, tags_code
from tiermq.message.message_filter import TagCodeFilter


def record(tags: str | None) -> bytes:
    return encode_record(topic="T", body=b"TAGS\x01TagA\x02", properties={"KEYS": "TagA", "TAGS": tags})


@pytest.mark.parametrize("expression", ["*", "", None, "  ", " * "])
def test_everything_matches_everything(expression: str | None) -> None:
    everything = TagFilter(expression)
    assert everything.matches_unit(0, None)
    assert everything.matches_unit(None, None)
    assert everything.matches_record(record(None))


@pytest.mark.parametrize("expression", ["TagA", "TagA || TagB", "TagB||TagA", "||TagA||", " TagA "])
def test_tags_joined_by_bars_match_each_of_them_and_no_other(expression: str) -> None:
    tag_filter = TagFilter(expression)
    assert tag_filter.matches_unit(tags_code("TagA"), None)
    assert tag_filter.matches_unit(None, None), "an unknown code is decided by the record"
    assert not tag_filter.matches_unit(tags_code("TagC"), None)
    assert not tag_filter.matches_unit(0, None)
    assert tag_filter.matches_record(record("TagA"))
    assert tag_filter.matches_record(memoryview(record("TagA")))
    assert not tag_filter.matches_record(record("TagC"))
    assert not tag_filter.matches_record(record(None))


def test_tags_with_the_same_hash_are_distinguished_by_the_record() -> None:
    assert java_hash("Aa") == java_hash("BB")
    tag_filter = TagFilter("Aa")
    assert tag_filter.matches_unit(tags_code("BB"), None)
    assert not tag_filter.matches_record(record("BB"))
    assert tag_filter.matches_record(record("Aa"))


def test_negative_codes_match_in_either_width() -> None:
    code = java_hash("TopicTest")
    assert code < 0
    tag_filter = TagFilter("TopicTest")
    assert tag_filter.matches_unit(code, None)
    assert tag_filter.matches_unit(code & 0xFFFFFFFF, None)


def test_tags_outside_ascii_match() -> None:
    assert TagFilter("größe || 标签").matches_record(record("标签"))


def test_an_expression_without_a_tag_is_refused() -> None:
    with pytest.raises(IllegalMessage, match=r"\|\|"):
        TagFilter("|| ||")


@pytest.mark.parametrize("data", [b"", bytes(100), encode_blank(100), record("TagA")[:-1]])
def test_a_damaged_record_is_an_error_and_not_a_message_that_does_not_match(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        TagFilter("TagA").matches_record(data)


def test_a_filter_by_code_knows_the_hashes_and_still_distinguishes_records() -> None:
    chosen = TagCodeFilter("A || B")
    assert chosen.codes == {java_hash("A"), java_hash("B")}
    assert isinstance(chosen, MessageFilter)
    assert repr(chosen) == "TagCodeFilter('A || B')"


def test_a_tag_filter_is_a_message_filter() -> None:
    assert isinstance(TagFilter("a"), MessageFilter)
    assert repr(TagFilter("a || b")) == "TagFilter('a || b')"
