"""fastjson's pretty text, as RocketMQ's configuration files have it."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tiermq.tier.restore.rocketmq_json import Bean, Value, encode_fastjson


def test_the_layout_is_that_of_a_consumer_offset_file() -> None:
    # As brokers write consumerOffset.json: integer keys follow the brace at once, the brace closes on its own line.
    group: dict[int, Value] = {0: 250, 1: 249}
    table: dict[str, Value] = {"TopicTest@group": group, "empty": {}}
    assert encode_fastjson(Bean([("offsetTable", table)])) == (
        '{\n\t"offsetTable":{\n\t\t"TopicTest@group":{0:250,1:249\n\t\t},\n\t\t"empty":{}\n\t}\n}'
    )


def test_a_bean_under_an_integer_key_opens_on_the_same_line() -> None:
    beans: dict[int, Value] = {7: Bean([("x", 1), ("y", "z")]), 8: Bean([("x", 2)])}
    outer: dict[str, Value] = {"a": beans}
    assert encode_fastjson(outer) == (
        '{\n\t"a":{7:{\n\t\t\t"x":1,\n\t\t\t"y":"z"\n\t\t},8:{\n\t\t\t"x":2\n\t\t}\n\t}\n}'
    )


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_is_a_json_string(text: str) -> None:
    assert json.loads(encode_fastjson(text)) == text


def test_control_characters_are_written_as_fastjson_does() -> None:
    assert encode_fastjson('a/"\\\t\n\x01\x0b\x7f\u2028é') == '"a/\\"\\\\\\t\\n\\u0001\\u000B\\u007F\\u2028é"'
