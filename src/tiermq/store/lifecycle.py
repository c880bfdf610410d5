"""The states of a store, in the order in which it passes through them. There is no way back."""

from __future__ import annotations

import enum

from tiermq.errors import IllegalTransition


class State(enum.IntEnum):
    """Numbers are RocketMQ's; the compaction state exists there only."""

    INIT = 0
    LOAD_BEGIN = 10
    LOAD_COMMITLOG_OK = 11
    LOAD_CONSUME_QUEUE_OK = 12
    LOAD_INDEX_OK = 14
    RECOVER_BEGIN = 20
    RECOVER_CONSUME_QUEUE_OK = 21
    RECOVER_COMMITLOG_OK = 22
    RECOVER_TOPIC_QUEUE_TABLE_OK = 23
    RUNNING = 30
    SHUTDOWN_BEGIN = 40
    SHUTDOWN_OK = 41


class Lifecycle:
    """Where a store is. Moved by the thread that opens or closes it."""

    def __init__(self) -> None:
        self.state = State.INIT

    def advance(self, to: State) -> None:
        """Move forward; a move to the same or an earlier state raises and changes nothing."""
        if to <= self.state:
            raise IllegalTransition(f"a store goes forward only: it is {self.state.name} and cannot become {to.name}")
        self.state = to

    @property
    def running(self) -> bool:
        return self.state is State.RUNNING
