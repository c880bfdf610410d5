"""New inputs from old ones: flipped bits, cuts, splices, lies in length fields, words of the format, long repetitions.

Everything is decided by the chance that is passed in, so an input follows from its seed and the corpus it came from.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

INPUT_BYTES_MAX = 64 * 1024
"""No input grows beyond it: long enough for nesting and quadratic work to show."""
INJURIES_MAX = 4
NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
LONG_NUMBERS = (*NUMBERS, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
DIGITS = (b"0", b"-1", b"2147483648", b"-2147483649", b"9223372036854775808", b"1e999", b"1" * 5000, b"1.5", b"007")
WORDS = (b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\xc3\x28", b"\\ud800", b"\\u0000", b"\x01", b"\x02", b"%s%n", b"../")
ODD_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 31, 1 << 63, -(1 << 70), 1.5, 1e308, float("inf"), float("nan"), "", "x", "1", "\ud800",
    "é" * 300, "../../x", "\0", [], [None], [[]], {}, {"": {}}, [1, "a", {}], {"a": [{}]},
)  # fmt: skip
_DIGIT_RUN = re.compile(rb"[0-9]+")
JSON_SHARE = 0.3
_REPEATS = (2, 16, 101, 1500, 20_000)


class Mutator:
    """Injuries by chance. `words` are those of the format; general ones come along."""

    def __init__(self, chance: random.Random, words: Sequence[bytes] = ()) -> None:
        self._chance = chance
        self._words = (*words, *WORDS)
        self._injuries: tuple[Callable[[bytearray], None], ...] = (
            self._flip,
            self._overwrite,
            self._lie,
            self._remove,
            self._insert,
            self._move,
            self._repeat,
            self._renumber,
            self._word,
            self._word_over,
            self._cut,
        )

    def mutated(self, data: bytes, others: Sequence[bytes]) -> bytes:
        """One input after one to four injuries; now and then joined with another one first."""
        if self._chance.random() < JSON_SHARE:
            restructured = self._restructured(data)
            if restructured is not None:
                return restructured[:INPUT_BYTES_MAX]
        made = bytearray(data)
        if others and self._chance.random() < 0.2:
            other = self._chance.choice(others)
            made[self._at(made) :] = other[self._chance.randrange(len(other) + 1) :]
        for _ in range(self._chance.randint(1, INJURIES_MAX)):
            self._chance.choice(self._injuries)(made)
        return bytes(made[:INPUT_BYTES_MAX])

    def _restructured(self, data: bytes) -> bytes | None:
        """A JSON document with one or two of its values replaced, removed or doubled; None where it is none."""
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return None
        for _ in range(self._chance.randint(1, 2)):
            places = _places(document)
            if not places:
                return json.dumps(self._chance.choice(ODD_VALUES)).encode()
            holder, key = self._chance.choice(places)
            kind = self._chance.randrange(4)
            if kind == 0:
                del holder[key]
            elif kind == 1 and isinstance(holder, list):
                holder.append(deepcopy(holder[key]))
            else:
                holder[key] = deepcopy(self._chance.choice(ODD_VALUES))  # One that is put into itself is no document.
        return json.dumps(document, separators=(",", ":")).encode()

    def _at(self, data: bytearray) -> int:
        return self._chance.randrange(len(data) + 1)

    def _span(self, data: bytearray) -> tuple[int, int]:
        """Mostly short, sometimes half of it all."""
        longest = self._chance.choice((1, 4, 16, max(1, len(data) // 2)))
        start = self._at(data)
        return start, min(len(data), start + self._chance.randint(1, longest))

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._chance.randrange(len(data))] ^= 1 << self._chance.randrange(8)

    def _overwrite(self, data: bytearray) -> None:
        start, end = self._span(data)
        data[start:end] = self._chance.randbytes(end - start)

    def _lie(self, data: bytearray) -> None:
        """A number where a length may stand, of any width."""
        width = self._chance.choice((1, 2, 4, 8))
        number = self._chance.choice(LONG_NUMBERS) + self._chance.choice((0, 0, -1, 1, len(data)))
        start = self._at(data)
        data[start : start + width] = (number & ((1 << 8 * width) - 1)).to_bytes(width, "big")

    def _remove(self, data: bytearray) -> None:
        start, end = self._span(data)
        del data[start:end]

    def _insert(self, data: bytearray) -> None:
        at = self._at(data)
        data[at:at] = self._chance.randbytes(self._chance.choice((1, 2, 4, 8)))

    def _move(self, data: bytearray) -> None:
        start, end = self._span(data)
        piece = data[start:end]
        at = self._at(data)
        data[at:at] = piece

    def _repeat(self, data: bytearray) -> None:
        start, end = self._span(data)
        piece = data[start:end]
        if piece:
            times = min(self._chance.choice(_REPEATS), INPUT_BYTES_MAX // len(piece))
            data[start:end] = piece * times

    def _renumber(self, data: bytearray) -> None:
        """Another number in the place of one that is written in digits."""
        runs = list(_DIGIT_RUN.finditer(data[:4096]))
        if runs:
            found = self._chance.choice(runs)
            data[found.start() : found.end()] = self._chance.choice(DIGITS)

    def _word(self, data: bytearray) -> None:
        at = self._at(data)
        word = self._chance.choice(self._words)
        times = self._chance.choice((1, 1, 1, 1, *_REPEATS))
        data[at:at] = word * max(1, min(times, INPUT_BYTES_MAX // max(1, len(word))))

    def _word_over(self, data: bytearray) -> None:
        start, end = self._span(data)
        data[start:end] = self._chance.choice(self._words)

    def _cut(self, data: bytearray) -> None:
        del data[self._at(data) :]


def _places(document: Any) -> list[tuple[Any, Any]]:
    """(holder, key) of every value inside a document; not deeper than a few levels of a deep one."""
    found: list[tuple[Any, Any]] = []
    level = [document]
    for _ in range(12):
        inner: list[Any] = []
        for each in level:
            keys = list(each) if isinstance(each, dict) else range(len(each)) if isinstance(each, list) else ()
            found += [(each, key) for key in keys]
            inner += [each[key] for key in keys]
        level = inner
    return found
