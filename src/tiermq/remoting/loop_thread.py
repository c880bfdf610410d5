"""LoopThread: a loop in a thread of its own, for programs that have no loop: pytest, notebooks, tools.

uvloop is used where it is installed (the extra `broker`), unless TIERMQ_UVLOOP=0.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future as ThreadFuture
from typing import Any, TypeVar

from tiermq.errors import RemotingError

T = TypeVar("T")

LOOK_S = 0.2 if sys.platform == "win32" and sys.version_info < (3, 14) else None
"""How long a thread waits at a time. There Ctrl-C is seen between waits only; elsewhere it ends them."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest loop there is."""
    if os.environ.get("TIERMQ_UVLOOP", "1") != "0" and importlib.util.find_spec("uvloop") is not None:
        made: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
        return made
    return asyncio.new_event_loop()


def result_of(future: ThreadFuture[T]) -> T:
    """Its result, when it is done. Ctrl-C interrupts."""
    while True:
        try:
            return future.result(LOOK_S)
        except TimeoutError:
            if future.done():
                return future.result()


class LoopThread:
    """Runs from its making until `stop`. Any thread may use it, except its own, and no forked process."""

    def __init__(self, name: str) -> None:
        self.loop = new_event_loop()
        started = threading.Event()
        self.loop.call_soon(started.set)
        self._is_parents = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        started.wait()
        _started.add(self)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            asyncio.set_event_loop(None)
            self.loop.close()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def require_elsewhere(self) -> None:
        """Raises RemotingError in the loop's own thread, which would wait for itself, and in a forked process."""
        if threading.get_ident() == self._thread.ident:
            raise RemotingError(
                "expected a call from another thread, found one on this client's own loop, which would wait for "
                "itself: call it in a plain function, or use the asyncio form"
            )
        if self._is_parents:
            raise RemotingError(
                "expected a client of this process, found one that was connected before the process was forked: "
                "connect after the fork, in each process"
            )

    def submit(self, work: Coroutine[Any, Any, T]) -> ThreadFuture[T]:
        try:
            self.require_elsewhere()
            if not self.is_running:
                raise RemotingError("expected an open client, found it closed: its loop is stopped")
        except RemotingError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives, when it is done."""
        return result_of(self.submit(work))

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """What a plain function gives that runs on the loop."""

        async def called() -> T:
            return function(*arguments)

        return self.run(called())

    def stop(self) -> None:
        """End the loop and the thread. Twice does no harm."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()


_started: weakref.WeakSet[LoopThread] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for thread in tuple(_started):
        thread._is_parents = True


if hasattr(os, "register_at_fork"):  # Not on Windows, which cannot fork.
    os.register_at_fork(after_in_child=_leave_to_parent)
