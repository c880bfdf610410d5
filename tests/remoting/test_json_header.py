"""The JSON header as Java writes it."""

from __future__ import annotations

import pytest

from tiermq.errors import BadFrame
from tiermq.remoting.codes import Language
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_header import decode_json_header, encode_json_header


def test_fields_are_in_alphabetical_order_and_absent_ones_are_left_out() -> None:
    command = RemotingCommand(105, opaque=7, language=Language.JAVA, ext={"topic": "T"})
    assert encode_json_header(command) == (
        b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )


def test_a_value_that_is_an_object_becomes_its_text() -> None:
    assert decode_json_header(b'{"code":1,"extFields":{"a":{"b":1}}}').ext == {"a": '{"b":1}'}


@pytest.mark.parametrize("number", [b"Infinity", b"1e999", b"NaN", b"[[]]", b"1" * 5000])
def test_a_header_whose_number_is_none_is_a_bad_frame(number: bytes) -> None:
    with pytest.raises(BadFrame):
        decode_json_header(b'{"code":%b,"opaque":1}' % number)
