"""Service: one background thread with a name, a wake-up and a graceful stop.

A service calls `run_once` until it is stopped; `run_once` returns how many seconds to wait unless woken. An exception
does not end the thread: it is logged with its context, counted, and the next round follows after a second, because a
store without a flusher is worse than one whose flusher reports errors.
Threads that compute for long beside a broker's loop do it inside `SHORT_TURNS`.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading

_log = logging.getLogger(__name__)

REST_AFTER_ERROR_S = 1.0
SWITCH_S = 0.0005


class CollectorPause:
    """The garbage collector rests while a long body is decoded, or a store is opened.

    Tens of thousands of values are made then, and none of them is part of a cycle. Beside them the collector looks
    at the whole process repeatedly, and every thread waits for it. The collector belongs to the process: the first
    caller stops it, the last one starts it, unless it was off before.

    Any thread may enter.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._was_enabled = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._was_enabled:
                gc.enable()


COLLECTOR_PAUSE = CollectorPause()


class ShortTurns:
    """While a thread is inside, one that computes hands the interpreter over after 0.5 ms, not after Python's 5 ms.

    A broker's loop gives the interpreter up for each call of the system, some three for a request, and waits as often
    for a thread that makes a long answer or delivers many messages. The interval belongs to the process: the first
    caller shortens it, the last one sets it back.

    Any thread may enter.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._usual_s = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._usual_s = sys.getswitchinterval()
                sys.setswitchinterval(min(SWITCH_S, self._usual_s))
            self._inside += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setswitchinterval(self._usual_s)


SHORT_TURNS = ShortTurns()


class Service:
    """Owned by the store. `start` and `stop` are called by one thread; `wake` by any."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.error_count = 0
        self.last_error: Exception | None = None
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def run_once(self) -> float:
        """Do the pending work; return how many seconds to wait."""
        raise NotImplementedError

    def finish(self) -> None:
        """Called once, in the thread, after the last `run_once`."""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def ask_to_stop(self) -> None:
        self._stopping.set()
        self._woken.set()

    def stop_within(self, timeout_s: float) -> bool:
        """Ask the thread to finish; False when a request hangs for longer; the thread ends with the request."""
        self.ask_to_stop()
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.running

    def stop(self) -> None:
        """Ask the thread to finish and wait until it has."""
        self.ask_to_stop()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                rest_s = self.run_once()
            except Exception as error:  # noqa: BLE001 - the thread's outermost edge
                self._note(error)
                rest_s = REST_AFTER_ERROR_S
            if rest_s > 0:
                self._woken.wait(rest_s)
            self._woken.clear()
        try:
            self.finish()
        except Exception as error:  # noqa: BLE001 - the thread's outermost edge
            self._note(error)

    def _note(self, error: Exception) -> None:
        """The outermost handler of the thread: keep the error for `store stat` and tests."""
        self.error_count += 1
        self.last_error = error
        _log.exception("%s: a round failed, trying again", self.name)
