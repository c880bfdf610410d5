"""The words of filter expressions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.broker.filtering.sql_tokens import Kind, tokenize
from tiermq.errors import BadExpression
from tiermq.remoting.limits import EXPRESSION_CHARACTERS_MAX


def words(expression: str) -> list[tuple[str, str]]:
    return [(token.kind.name, token.text) for token in tokenize(expression)[:-1]]


def test_every_kind_of_word_is_told_apart() -> None:
    assert words("a_$1 >= 10L and .5e3 <> 'it''s' Or (not x)") == [
        ("NAME", "a_$1"),
        ("SIGN", ">="),
        ("WHOLE", "10L"),
        ("WORD", "AND"),
        ("DECIMAL", ".5e3"),
        ("SIGN", "<>"),
        ("TEXT", "it's"),
        ("WORD", "OR"),
        ("SIGN", "("),
        ("WORD", "NOT"),
        ("NAME", "x"),
        ("SIGN", ")"),
    ]


@pytest.mark.parametrize("number", ["5.", "5.5", "5.5E10", "5.E10", ".5", "5E10", "5e-3"])
def test_decimal_numbers(number: str) -> None:
    assert words(number) == [("DECIMAL", number)]


def test_comments_and_space_separate_words() -> None:
    assert words("a -- to the end\n /* and\n * this **/ = \t\f1") == [("NAME", "a"), ("SIGN", "="), ("WHOLE", "1")]


def test_a_name_that_begins_like_a_word_is_a_name() -> None:
    assert words("android notes inX") == [("NAME", "android"), ("NAME", "notes"), ("NAME", "inX")]


@pytest.mark.parametrize("expression", ["a = 'open", "a # b", "ä = 1", "a = /* open", '"a"', "a != 1"])
def test_what_is_no_word_is_refused_with_its_place(expression: str) -> None:
    with pytest.raises(BadExpression, match=r"at character \d+"):
        tokenize(expression)


def test_a_comment_without_an_end_of_line_is_none() -> None:
    assert words("a --b") == [("NAME", "a"), ("SIGN", "-"), ("SIGN", "-"), ("NAME", "b")]


def test_an_expression_that_is_too_long_is_refused() -> None:
    with pytest.raises(BadExpression, match="at most"):
        tokenize(" " * (EXPRESSION_CHARACTERS_MAX + 1))


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        tokens = tokenize(text)
    except BadExpression:
        return
    assert tokens[-1].kind is Kind.END
    assert [token.at for token in tokens] == sorted(token.at for token in tokens)


@given(st.text())
def test_any_text_can_be_written_as_a_constant(text: str) -> None:
    quoted = "'" + text.replace("'", "''") + "'"
    assert words(quoted) == [("TEXT", text)]


def test_a_line_comment_needs_its_end_of_line_and_thousands_of_dashes_are_only_dashes() -> None:
    assert words("a -- b\n") == words("a")
    assert words("a -- b\r-") == words("a -")
    assert words("\n--b") == words("--b") == [("SIGN", "-"), ("SIGN", "-"), ("NAME", "b")]
    assert len(tokenize("-" * EXPRESSION_CHARACTERS_MAX)) == EXPRESSION_CHARACTERS_MAX + 1
