"""Filter expressions from text to answer, with the cases that RocketMQ's users know."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.broker.group.subscription import EXPRESSION_CHARACTERS_MAX
from tiermq.broker.pull.sql_filter import (
    EXPRESSION_TERMS_MAX,
    SQL_NESTING_MAX,
    Kind,
    parse,
    parse_counted,
    tokenize,
)
from tiermq.broker.pull.sql_nodes import NotComparable
from tiermq.errors import BadExpression


def answer(expression: str, **properties: str) -> object:
    """True, False or None; "error" where the message does not fit the expression."""
    try:
        return parse(expression).evaluate(properties.get)
    except NotComparable:
        return "error"


@pytest.mark.parametrize(
    ("expression", "properties", "expected"),
    [
        ("a = 1 OR b = 1 AND c = 1", {"a": "1", "b": "0", "c": "0"}, True),
        ("(a = 1 OR b = 1) AND c = 1", {"a": "1", "b": "0", "c": "0"}, False),
        ("a between 0 and 3", {"a": "2"}, True),
        ("a NOT BETWEEN 0 AND 3", {"a": "2"}, False),
        ("a BETWEEN -3 AND +3", {"a": "-2"}, True),
        ("a > 5 AND a < 10.5", {"a": "7"}, True),
        ("a > 5.0", {"a": "7.5"}, True),
        ("a > 5", {"a": "7.5"}, "error"),
        ("a > 5 OR b = 'x'", {"a": "seven", "b": "x"}, "error"),
        ("b = 'x' OR a > 5", {"a": "seven", "b": "x"}, True),
        ("a > b", {"a": "10", "b": "9"}, True),
        ("5 < a", {"a": "6"}, True),
        ("a = 'it''s'", {"a": "it's"}, True),
        ("a <> 'x'", {"a": "y"}, True),
        ("a <> 'x'", {}, None),
        ("'x' <> a", {}, True),
        ("a IS NULL", {}, True),
        ("a IS NOT NULL", {}, False),
        ("a is not null and b is null", {"a": "1"}, True),
        ("a IN ('x', 'y')", {"a": "y"}, True),
        ("a NOT IN ('x', 'y')", {"a": "z"}, True),
        ("a IN ('x') IS NULL", {}, True),
        ("a CONTAINS 'b'", {"a": "abc"}, True),
        ("a not contains 'b'", {"a": "abc"}, False),
        ("a STARTSWITH 'ab' AND a ENDSWITH 'bc'", {"a": "abc"}, True),
        ("a NOT STARTSWITH 'b' AND a NOT ENDSWITH 'b'", {"a": "abc"}, True),
        ("TRUE", {}, True),
        ("FALSE OR TRUE", {}, True),
        ("NULL", {}, None),
        ("a = TRUE", {"a": "TRUE"}, True),
        ("a = FALSE", {"a": "whatever"}, True),
        ("TRUE = a", {"a": "true"}, "error"),
        ("NOT TRUE", {}, False),
        ("NOT (a = 1)", {"a": "1"}, False),
        ("NOT a = TRUE", {"a": "1"}, True),
        ("NOT a = 1", {"a": "1"}, False),
        ("a", {"a": "true"}, False),
        ("a OR b = 1", {"a": "true", "b": "1"}, True),
        ("a = -5", {"a": "-5"}, True),
        ("a = - -5", {"a": "5"}, True),
        ("-a < 5", {"a": "3"}, None),
        ("a = 1 = TRUE", {"a": "1"}, True),
        ("a > 2147483648", {"a": "3000000000"}, True),
        ("a > 1", {"a": "3000000000"}, "error"),
        ("a = 0.0", {"a": "0"}, True),
        ("TAGS = 'A' AND KEYS = 'k'", {"TAGS": "A", "KEYS": "k"}, True),
    ],
)
def test_what_an_expression_reports_of_a_message(expression: str, properties: dict[str, str], expected: object) -> None:
    assert answer(expression, **properties) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "",
        " ",
        "a =",
        "= 1",
        "a = 1 AND",
        "a = = 1",
        "(a = 1",
        "a = 1)",
        "a = 1 b",
        "a IN ()",
        "a IN (1)",
        "a IN 'x'",
        "a IN ('x',)",
        "5 IN ('x')",
        "a BETWEEN 5 AND 1",
        "a BETWEEN 'a' AND 'b'",
        "a BETWEEN 1",
        "a > 'x'",
        "a > TRUE",
        "a = NULL",
        "a IS 5",
        "a IS NOT",
        "a NOT 5",
        "a CONTAINS 5",
        "a CONTAINS",
        "5",
        "'x'",
        "a LIKE 'x'",
        "a = 9223372036854775808",
        "a = 1e999",
        "a = 007",
        "a + 1 = 2",
        "TRUE = 5",
        "NOT",
        "(" * (SQL_NESTING_MAX + 1) + "TRUE" + ")" * (SQL_NESTING_MAX + 1),
        "NOT " * (SQL_NESTING_MAX + 1) + "TRUE",
    ],
)
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(BadExpression, match="expected"):
        parse(expression)


def test_something_behind_an_expression_is_refused_and_not_ignored() -> None:
    with pytest.raises(BadExpression, match=r"expected the end at character 6, found 'DROP'"):
        parse("a = 1 DROP")


@given(st.text(alphabet="ab1.'()=<>, \tANDORTIBEWULxyz-+", max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        node = parse(text)
    except BadExpression:
        return
    assert answer(text, a="1", b="x") in (True, False, None, "error")
    assert node.is_condition


NAMES = st.sampled_from(["a", "b", "c"])
NUMBERS = st.integers(-100, 100)


@st.composite
def conditions(draw: st.DrawFn, depth: int = 3) -> tuple[str, str]:
    """An expression, and the same in Python over a dict `p` of whole numbers."""
    kind = draw(st.sampled_from(["compare", "between", "and", "or", "not"])) if depth else "compare"
    if kind == "compare":
        name, number = draw(NAMES), draw(NUMBERS)
        sign, python = draw(st.sampled_from([("=", "=="), ("<>", "!="), ("<", "<"), ("<=", "<="), (">", ">")]))
        return f"{name} {sign} {number}", f"(p['{name}'] {python} {number})"
    if kind == "between":
        name, low, more = draw(NAMES), draw(NUMBERS), draw(st.integers(0, 50))
        return f"{name} BETWEEN {low} AND {low + more}", f"({low} <= p['{name}'] <= {low + more})"
    left, python_left = draw(conditions(depth - 1))
    if kind == "not":
        return f"NOT ({left})", f"(not {python_left})"
    right, python_right = draw(conditions(depth - 1))
    return f"({left}) {kind.upper()} ({right})", f"({python_left} {kind} {python_right})"


@given(conditions(), st.fixed_dictionaries({"a": NUMBERS, "b": NUMBERS, "c": NUMBERS}))
def test_expressions_over_numbers_say_what_python_reports(both: tuple[str, str], values: dict[str, int]) -> None:
    expression, python = both
    properties = {name: str(value) for name, value in values.items()}
    assert answer(expression, **properties) is eval(python, {"p": values})


@pytest.mark.parametrize(("joined", "last"), [(" AND ", "5"), (" OR ", "-5")])
def test_a_long_row_of_conditions_needs_no_deep_stack(joined: str, last: str) -> None:
    expression = joined.join(["a > 1"] * 250)
    assert answer(expression, a=last) is (joined == " AND ")
    assert answer(expression) is None


def test_what_decides_a_row_is_found_behind_what_is_unknown() -> None:
    assert answer("b = '1' AND a > 1 AND a > 9", a="5") is False
    assert answer("b = '1' OR a > 9 OR a > 1", a="5") is True
    assert answer("a > 1 AND b = '1' AND a > 2", a="5") is None


@pytest.mark.parametrize("test", [" IS NULL", " = TRUE", " <> TRUE"])
def test_comparisons_of_comparisons_without_end_are_refused(test: str) -> None:
    with pytest.raises(BadExpression, match="in a row"):
        parse("a" + test * 250)


LONG = [
    " OR ".join(["(" + "-" * 95 + "1 = k)"] * 6),
    " OR ".join(["(" + "+" * 95 + "1 = k)"] * 6),
    " AND ".join(["NOT " * 90 + "a"] * 6),
    " AND ".join(["a" + " IS NULL" * 90] * 6),
    " AND ".join(["a" + " CONTAINS 'x'" * 90] * 6),
    " OR ".join(["(" * 90 + "a = 1" + ")" * 90] * 6),
]


@pytest.mark.parametrize("expression", LONG)
def test_every_part_of_an_expression_counts_as_a_term_whatever_it_is(expression: str) -> None:
    joined = " OR " if " OR " in expression else " AND "
    half = joined.join(expression.split(joined)[:3])
    assert 270 < parse_counted(half)[1] < 310
    with pytest.raises(BadExpression, match=f"at most {EXPRESSION_TERMS_MAX} values"):
        parse(expression)


def words(expression: str) -> list[tuple[str, str]]:
    return [(token.kind.name, token.text) for token in list(tokenize(expression))[:-1]]


def test_every_kind_of_word_is_distinguished() -> None:
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
        list(tokenize(expression))


def test_a_comment_without_an_end_of_line_is_none() -> None:
    assert words("a --b") == [("NAME", "a"), ("SIGN", "-"), ("SIGN", "-"), ("NAME", "b")]


def test_an_expression_that_is_too_long_is_refused() -> None:
    with pytest.raises(BadExpression, match="at most"):
        list(tokenize(" " * (EXPRESSION_CHARACTERS_MAX + 1)))


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        tokens = list(tokenize(text))
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
    assert len(list(tokenize("-" * EXPRESSION_CHARACTERS_MAX))) == EXPRESSION_CHARACTERS_MAX + 1
