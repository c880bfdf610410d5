"""QueuePulls: pulls of one queue, several in flight at guessed offsets, answered in the order of the queue.

The broker decides how many messages it returns. Each pull asks for the range where it will probably start; an answer
that ends before its range does is continued by one more pull, ahead of those that are in flight. So nothing that was
asked for is thrown away, unless the queue itself jumps.

    asked      [ 0..31 ][ 32..63 ][ 64..95 ] ...            `ahead` of them
    answered   [ 0..11 ]                                    the broker's limit in bytes: asks 12..31 next, and for 12 at
                                                            a time from now on

New pulls are sent when half of them are answered, in one write. A filter makes guesses useless: then one pull is in
flight. Belongs to the client's loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from tiermq.client.queue_access import PULL_MESSAGES, Pulled, QueueAccess, SentPull
from tiermq.remoting.codes import ResponseCode

GROW_AFTER = 32
"""After so many full answers in a row one larger range is tried; after twice as many if it was not answered in full."""


@dataclass(slots=True)
class _Asked:
    """A pull in flight, for messages [offset, offset + most)."""

    offset: int
    most: int
    answer: SentPull | asyncio.Task[Pulled]

    def forget(self) -> None:
        (self.answer.answer if isinstance(self.answer, SentPull) else self.answer).cancel()


class QueuePulls:
    """See the module. `end`: nothing from there on is asked for."""

    def __init__(
        self, queue: QueueAccess, end: int, *, ahead: int, expression: str = "*", most: int = PULL_MESSAGES
    ) -> None:
        self._queue = queue
        self._end = end
        self._expression = expression
        self._ahead = ahead if expression == "*" else 1
        self._most = most
        self._step = 0
        self._full = 0
        self._grow_after = GROW_AFTER
        self._asked: deque[_Asked] = deque()

    async def take(self, at: int) -> Pulled:
        """The answer for `at`, which must be below the end. Raises what a pull raises."""
        while self._asked and self._asked[0].offset < at:
            self._asked.popleft().forget()
        if not self._asked or self._asked[0].offset > at:
            room = self._asked[0].offset - at if self._asked else self._step or self._most
            self._asked.appendleft(self._ask(at, min(room, self._most)))
        if self._step and len(self._asked) <= self._ahead // 2:
            place = self._asked[-1].offset + self._asked[-1].most
            while len(self._asked) < self._ahead and place < self._end:
                asked = self._ask(place, self._range())
                self._asked.append(asked)
                place += asked.most
        first = self._asked.popleft()
        if isinstance(first.answer, SentPull):
            pulled = await self._queue.answer_of(first.answer, first.offset, first.most)
        else:
            pulled = await first.answer
        self._learn(first, pulled)
        return pulled

    def _range(self) -> int:
        """For how many messages the next pull asks."""
        if self._full < self._grow_after or self._step >= self._most:
            return self._step
        self._full = 0
        self._grow_after *= 2
        return min(2 * self._step, self._most)

    def _ask(self, offset: int, most: int) -> _Asked:
        most = max(1, min(most, self._end - offset))
        sent = self._queue.pull_soon(offset, most) if self._expression == "*" else None
        if sent is not None:
            sent.answer.add_done_callback(_seen)
            return _Asked(offset, most, sent)
        answer = asyncio.get_running_loop().create_task(self._queue.pull(offset, self._expression, most))
        answer.add_done_callback(_seen)
        return _Asked(offset, most, answer)

    def _learn(self, asked: _Asked, pulled: Pulled) -> None:
        """How many messages an answer has."""
        got = pulled.next_offset - asked.offset if pulled.code == ResponseCode.SUCCESS else 0
        if not 0 < got <= asked.most:
            self.forget()
            self._step = 0
        elif got < asked.most:
            self._step, self._full = got, 0
        else:
            self._full += 1
            if got > self._step:
                self._step, self._grow_after = got, GROW_AFTER

    def forget(self) -> None:
        """Give up what is in flight."""
        for asked in self._asked:
            asked.forget()
        self._asked.clear()


def _seen(answer: asyncio.Future[Any]) -> None:
    """An error of a pull that was given up concerns no caller."""
    if not answer.cancelled():
        answer.exception()
