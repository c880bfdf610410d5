"""Requests and their answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import RequestRefused
from tiermq.remoting.codes import TRUNCATED_CODES, VERSION, Language, RequestCode, language_of
from tiermq.remoting.command import (
    FLAG_ONEWAY,
    HeaderType,
    RemotingCommand,
    bool_field,
    int32_field,
    int_field,
    text_field,
)

COMMAND = RemotingCommand(
    11, ext={"text": "x", "number": "-7", "big": "9223372036854775807", "yes": "1", "no": "maybe"}
)


def test_an_answer_has_the_opaque_and_the_header_type_of_its_request() -> None:
    request = RemotingCommand(310, opaque=-7, header_type=HeaderType.ROCKETMQ)
    answer = request.respond(17, "no such topic", ext={"a": "b"})
    assert (answer.opaque, answer.header_type, answer.code) == (-7, HeaderType.ROCKETMQ, 17)
    assert answer.is_response
    assert not answer.is_oneway
    assert answer.version == VERSION
    assert answer.ext == {"a": "b"}


def test_a_request_reports_whether_it_wants_an_answer() -> None:
    assert RemotingCommand(15, flag=FLAG_ONEWAY).is_oneway
    assert "one-way 15" in repr(RemotingCommand(15, flag=FLAG_ONEWAY))
    assert RemotingCommand(15) != RemotingCommand(16)


def test_fields_have_their_types() -> None:
    assert text_field(COMMAND, "text") == "x"
    assert int_field(COMMAND, "number") == int32_field(COMMAND, "number") == -7
    assert int_field(COMMAND, "big") == 2**63 - 1
    assert bool_field(COMMAND, "yes")
    assert not bool_field(COMMAND, "no")


def test_defaults_stand_for_what_is_absent() -> None:
    assert (text_field(COMMAND, "?", ""), int_field(COMMAND, "?", 3), bool_field(COMMAND, "?", True)) == ("", 3, True)


@pytest.mark.parametrize("read", [text_field, int_field, int32_field, bool_field])
def test_a_missing_field_refuses_the_request_with_a_system_error(read: object) -> None:
    assert callable(read)
    with pytest.raises(RequestRefused, match="expected the field consumerGroup") as found:
        read(COMMAND, "consumerGroup")
    assert found.value.code == 1


@pytest.mark.parametrize("value", ["", "x", "1.5", "1_000", " 1", "9223372036854775808", "9" * 30, "٣"])
def test_what_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(RequestRefused, match="number"):
        int_field(RemotingCommand(1, ext={"n": value}), "n")


@given(st.integers(-(2**64), 2**64) | st.integers(-(2**32), 2**32), st.sampled_from(["", "+", "0", "00000000000"]))
def test_a_number_is_read_as_it_stands_or_refused_for_its_size(value: int, before: str) -> None:
    text = before + str(value) if value >= 0 else str(value)
    command = RemotingCommand(1, ext={"n": text})
    for read, bits in ((int_field, 63), (int32_field, 31)):
        fits = -(2**bits) <= value < 2**bits and len(text.lstrip("+-")) <= 19
        if fits:
            assert read(command, "n") == value
        else:
            with pytest.raises(RequestRefused):
                read(command, "n")


def test_a_number_of_32_bits_is_not_larger() -> None:
    with pytest.raises(RequestRefused, match="32 bits"):
        int32_field(COMMAND, "big")


def test_a_language_is_known_by_number_and_by_name_and_else_is_other() -> None:
    assert language_of(0) is Language.JAVA
    assert language_of("GO") is Language.GO
    assert language_of(99) is Language.OTHER
    assert language_of(None) is Language.OTHER


def test_no_truncated_code_hides_another() -> None:
    assert not TRUNCATED_CODES.keys() & {int(code) for code in RequestCode if code <= 0x7FFF}
