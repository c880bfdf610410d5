"""The binary header's small print."""

from __future__ import annotations

import pytest

from tiermq.errors import BadFrame
from tiermq.remoting.binary_header import decode_binary_header, encode_binary_header
from tiermq.remoting.command import HeaderType, RemotingCommand


def test_a_value_of_no_bytes_reads_as_absent() -> None:
    command = RemotingCommand(1, ext={"a": "", "b": "x"}, header_type=HeaderType.ROCKETMQ)
    assert decode_binary_header(encode_binary_header(command)).ext == {"b": "x"}


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(BadFrame, match="field name"):
        encode_binary_header(RemotingCommand(1, ext={"a" * 40_000: "x"}, header_type=HeaderType.ROCKETMQ))


def test_an_unknown_language_is_another() -> None:
    header = bytearray(encode_binary_header(RemotingCommand(1, header_type=HeaderType.ROCKETMQ)))
    header[2] = 200
    assert decode_binary_header(bytes(header)).language == 7
