"""Our SQL92 filter and RocketMQ's own, asked the same thousands of questions."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from interop.rocketmq import Distribution
from tiermq.broker.pull.sql_filter import parse
from tiermq.broker.pull.sql_nodes import NotComparable
from tiermq.errors import BadExpression

pytestmark = pytest.mark.interop

COUNT = 20_000
NAMES = ("a", "b", "c", "TAGS", "_x")
VALUES = (
    "1", "5", "-5", "9.5", "abc", "ABC", "true", "FALSE", "", "3000000000", "1e3", "0x1p3", "NaN", " 7", "7 ", "+4",
    "1_0", "\u0663", "Infinity", "-0.0", "0", "it's", "99999999999999999999", "1f", "5L", ".", "1.e5d",
)  # fmt: skip
CONSTANTS = (
    "0", "1", "5", "9", "5L", "9l", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "1.5",
    "9.5", ".5", "5.", "1e3", "2E-2", "1e999", "'abc'", "'it''s'", "''", "'5'", "'true'", "TRUE", "false", "NULL",
    "-5", "-1.5", "-a", "-2147483648",
)  # fmt: skip
TEXTS = ("'abc'", "'5'", "'x'", "'bc'", "''")


class Questions:
    """Expressions by chance, most of which are some."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def pick(self, *choices: str) -> str:
        return self.chance.choice(choices)

    def value(self) -> str:
        kind = self.chance.randrange(10)
        if kind < 4:
            return self.pick(*NAMES)
        if kind < 9:
            return self.pick(*CONSTANTS)
        return f"({self.expression()})"

    def unary(self) -> str:
        return self.pick(*["{}"] * 12, "NOT {}", "+{}").format(self.value())

    def comparison(self) -> str:
        left, kind = self.unary(), self.chance.randrange(10)
        maybe_not = self.pick("", "NOT ", "not ")
        if kind < 3:
            return f"{left} {self.pick('<', '<=', '>', '>=')} {self.unary()}"
        if kind == 3:
            return f"{left} {maybe_not}BETWEEN {self.unary()} AND {self.unary()}"
        if kind == 4:
            texts = ", ".join(self.pick(*TEXTS) for _ in range(self.chance.randrange(1, 7)))
            return f"{left} {maybe_not}IN ({texts})"
        if kind == 5:
            return f"{left} {maybe_not}{self.pick('CONTAINS', 'startswith', 'ENDSWITH')} {self.pick(*TEXTS)}"
        return left

    def equality(self) -> str:
        left, kind = self.comparison(), self.chance.randrange(10)
        if kind < 4:
            return f"{left} {self.pick('=', '<>')} {self.comparison()}"
        return f"{left} {self.pick('IS NULL', 'is not null')}" if kind == 4 else left

    def expression(self) -> str:
        parts = [self.equality()]
        while self.chance.random() < 0.35:
            parts += [self.pick("AND", "OR", "and", "or"), self.equality()]
        return " ".join(parts)

    def properties(self) -> dict[str, str]:
        return {name: self.chance.choice(VALUES) for name in NAMES if self.chance.random() < 0.7}


def ours(expression: str, properties: dict[str, str]) -> str:
    try:
        node = parse(expression)
    except BadExpression:
        return "refused"
    try:
        return {True: "true", False: "false", None: "null"}[node.evaluate(properties.get)]  # type: ignore[index]
    except NotComparable:
        return "error"


def test_both_filters_say_the_same_of_every_expression_and_message(distribution: Distribution, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    questions = Questions(seed)
    asked = [(questions.expression(), questions.properties()) for _ in range(COUNT)]
    lines = ["\t".join([expression, *sum(found.items(), ())]) for expression, found in asked]
    command = distribution.java(tmp_path, "Filtering")
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    theirs = done.stdout.decode().splitlines()
    assert len(theirs) == COUNT
    different = [
        (expression, found, answer, theirs_answer)
        for (expression, found), theirs_answer in zip(asked, theirs, strict=True)
        if (answer := ours(expression, found)) != theirs_answer
    ]
    assert different == [], f"seed {seed}: (expression, properties, ours, theirs)"
    assert min(Counter(theirs)[each] for each in ("true", "false", "null", "error", "refused")) > COUNT // 100
