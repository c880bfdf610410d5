"""EndSignals: SIGTERM, SIGINT and SIGHUP as something to wait for, by a command that serves until it is stopped.

    with EndSignals() as ending:
        start()
        ending.wait(on_hangup=reload)

SIGTERM and SIGINT end the wait. SIGHUP calls `on_hangup`, in the waiting thread, and the wait goes on.

Python runs a handler in the main thread, between two of its instructions. A signal that comes at the moment when that
thread is about to block on a lock, or that the kernel gives to another thread, does not wake it: the process would go
on as if nobody had asked. So the main thread waits on a socket, into which the interpreter itself writes the number of
each signal when it comes, in whatever thread.

What follows the wait may take a while (a tier gets what it lacks). Another signal then ends the process at once, unless
it comes within AGAIN_S of the first: some programs, GNU timeout among them, send theirs twice.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

NUMBERS = (signal.SIGTERM, signal.SIGINT)
AGAIN_S = 1.0


class EndSignals:
    """Belongs to the main thread. What comes from `__enter__` on is remembered; at the end all is as before."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._fd_before = -1
        self._mine, self._written = socket.socketpair()
        self._listener: threading.Thread | None = None
        self._written.setblocking(False)  # As the interpreter demands; nobody sends so many signals that it fills.

    def __enter__(self) -> Self:
        self._fd_before = signal.set_wakeup_fd(self._written.fileno())
        for number in (*NUMBERS, signal.SIGHUP):
            # Without a handler the process would end at once.
            self._before[number] = signal.signal(number, lambda _number, _frame: None)
        return self

    def wait(self, on_hangup: Callable[[], None]) -> None:
        """Until a signal to end has come. Other signals that have handlers are ignored."""
        while not set(came := self._mine.recv(64)) & set(NUMBERS):
            if signal.SIGHUP in came:
                on_hangup()
        self._listener = threading.Thread(target=self._end_at_once, args=(time.monotonic(),), daemon=True)
        self._listener.start()

    def _end_at_once(self, first_s: float) -> None:
        """Until all is as before: end the process by a signal that repeats the first."""
        while numbers := self._mine.recv(64):
            again = set(numbers) & set(NUMBERS)
            if again and time.monotonic() - first_s >= AGAIN_S:
                print("ended at once by a second signal; the store recovers at its next start", file=sys.stderr)
                sys.stderr.flush()
                os._exit(128 + min(again))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        self._written.close()
        if self._listener is not None:
            self._listener.join()  # It has read the end.
        self._mine.close()
