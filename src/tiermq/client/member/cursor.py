"""MessageCursor: what a loop over messages was given, and what comes next.

Asking for more means that what was given is done. So a body that raises leaves its message undone, and it comes again;
a block that ends well counts its last message. Messages whose queue went to another member meanwhile are skipped.
Belongs to one thread, or one task, at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tiermq.client.member.received_message import ReceivedMessage


class MessageCursor:
    """See the module. Without `auto_ack` nothing is done until it is acknowledged."""

    __slots__ = ("_auto_ack", "_batch", "_given")

    def __init__(self, *, auto_ack: bool) -> None:
        self._auto_ack = auto_ack
        self._batch: deque[ReceivedMessage] = deque()
        self._given: list[ReceivedMessage] = []

    def finish(self) -> None:
        """What was given is done."""
        given, self._given = self._given, []
        if self._auto_ack:
            for message in given:
                if message.receipt is not None:
                    message.receipt.done()

    def next(self) -> ReceivedMessage | None:
        """The next message that was fetched already."""
        if self._given:
            self.finish()
        while self._batch:
            message = self._batch.popleft()
            if message.receipt is None or message.receipt.is_current:
                self._given.append(message)
                return message
        return None

    def next_many(self, most: int) -> list[ReceivedMessage]:
        """The same for a list of them, which are done together."""
        found: list[ReceivedMessage] = []
        self.finish()
        while self._batch and len(found) < most:
            message = self._batch.popleft()
            if message.receipt is None or message.receipt.is_current:
                found.append(message)
        self._given = list(found)
        return found

    def refill(self, messages: Iterable[ReceivedMessage]) -> None:
        self._batch.extend(messages)

    def keep_open(self, message: ReceivedMessage) -> None:
        """It was decided otherwise: asking for more does not mean that it is done."""
        self._given = [each for each in self._given if each is not message]
