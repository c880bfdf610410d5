"""LoopThread: a loop in a thread of its own, for programs that have no loop: pytest, notebooks, tools.

uvloop is used where it is installed (the extra `broker`), unless TIERMQ_UVLOOP=0.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future as ThreadFuture
from typing import Any, TypeVar

from tiermq.errors import RemotingError

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest loop there is."""
    if os.environ.get("TIERMQ_UVLOOP", "1") != "0" and importlib.util.find_spec("uvloop") is not None:
        made: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
        return made
    return asyncio.new_event_loop()


class LoopThread:
    """Runs from its making until `stop`. Any thread may use it, except its own."""

    def __init__(self, name: str) -> None:
        self.loop = new_event_loop()
        started = threading.Event()
        self.loop.call_soon(started.set)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        started.wait()

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

    def submit(self, work: Coroutine[Any, Any, T]) -> ThreadFuture[T]:
        if not self.is_running:
            work.close()
            raise RemotingError("expected a thread with a running loop, found it stopped")
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives, when it is done."""
        return self.submit(work).result()

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
