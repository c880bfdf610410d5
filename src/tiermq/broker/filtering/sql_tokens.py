"""The words of an SQL92 filter expression.

    price > 9.5 AND region IN ('eu', 'us')   ─►   ID OP FLOAT AND ID IN ( STRING , STRING ) END

Words are told apart in any case; names of properties are not changed. A text's quote is doubled inside of it. Comments
are `-- … end of line` and `/* … */`. Anything else raises BadExpression and says where.
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

from tiermq.errors import BadExpression
from tiermq.remoting.limits import EXPRESSION_CHARACTERS_MAX

WORDS = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"}
)


class Kind(enum.Enum):
    WORD = "word"
    NAME = "name"
    TEXT = "text"
    WHOLE = "whole number"
    DECIMAL = "decimal number"
    SIGN = "sign"
    END = "end"


class Token(NamedTuple):
    """One word: what it is, its text (of a TEXT: without quotes), and where it begins."""

    kind: Kind
    text: str
    at: int


_SPACE = r"[ \t\n\r\f]+|/\*.*?\*/"
_LINE_COMMENT = r"--[^\n\r]*(?:\r\n|\n|\r)"
_REST = (
    r"(?P<decimal>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<whole>0|[1-9][0-9]*[lL]?)"
    r"|(?P<text>'(?:''|[^'])*')"
    r"|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<sign><>|<=|>=|[=<>(),+-])"
)
_TOKEN = re.compile(rf"(?P<space>{_SPACE}|{_LINE_COMMENT})|{_REST}", re.DOTALL)
_TOKEN_OF_LAST_LINE = re.compile(rf"(?P<space>{_SPACE})|{_REST}", re.DOTALL)
_KINDS = {"decimal": Kind.DECIMAL, "whole": Kind.WHOLE, "text": Kind.TEXT, "name": Kind.NAME, "sign": Kind.SIGN}


def tokenize(expression: str) -> list[Token]:
    """All words, the last of them END. Raises BadExpression."""
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise BadExpression(
            f"expected an expression of at most {EXPRESSION_CHARACTERS_MAX} characters, found {len(expression)}"
        )
    tokens = []
    at = 0
    # Behind the last end of a line `--` begins no comment; looking for one at each would be work by the square.
    last_line_at = max(expression.rfind("\n"), expression.rfind("\r")) + 1
    while at < len(expression):
        found = (_TOKEN if at < last_line_at else _TOKEN_OF_LAST_LINE).match(expression, at)
        if found is None:
            raise BadExpression(
                f"expected a property, a value or an operator at character {at}, found {expression[at : at + 20]!r}"
            )
        group = found.lastgroup or ""
        text = found.group()
        if group == "name" and text.upper() in WORDS:
            tokens.append(Token(Kind.WORD, text.upper(), at))
        elif group == "text":
            tokens.append(Token(Kind.TEXT, text[1:-1].replace("''", "'"), at))
        elif group != "space":
            tokens.append(Token(_KINDS[group], text, at))
        at = found.end()
    tokens.append(Token(Kind.END, "", at))
    return tokens
