"""World: threads, conditions and asyncio loops of the product in simulated time, one at a time, the same by each seed.

    world.spawn(process, call) ─► Thread ── waits (event, condition, join, sleep, select) ──► back to the world
                                    ▲                                                            │ next in time
                                    └────────────────────────────────────────────────────────────┘

Each simulated thread is a thread of Python that runs only while the world lets it: so the product's blocking code runs
as it is. `product_threads` replaces `threading`, `time` and `asyncio.run` in its modules. A process can be paused (its
threads are not resumed; time goes on) and killed (they unwind at their next wait). Clocks of machines run unequally.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, Self

LEAST_S = 0.0001
"""Time that passes at least between a wait and its end: no loop stands still."""
SWITCH_S = 0.002
"""At most so long after its wake-up a thread runs."""


class Killed(BaseException):
    """The process of this thread has ended."""


@dataclass
class MachineClock:
    """Shows anything, and runs at its own rate."""

    world: World
    begin_s: float
    rate: float

    def monotonic(self) -> float:
        return self.begin_s + self.world.now_s * self.rate

    def now_ms(self) -> int:
        return int(self.monotonic() * 1000)


@dataclass
class Process:
    """Threads that pause and end together."""

    world: World
    clock: MachineClock
    is_alive: bool = True
    paused_until_s: float = 0.0
    threads: list[Thread] = field(default_factory=list)
    on_end: list[Callable[[], None]] = field(default_factory=list)

    def kill(self) -> None:
        """kill -9: what it holds is closed by `on_end`; its threads unwind without doing anything more."""
        if self.is_alive:
            self.is_alive = False
            for each in tuple(self.threads):
                self.world.resume(each)
            for call in self.on_end:
                call()


class World:
    """See the module. Used by one thread: the simulation's."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self.process: Process | None = None
        """Whose code runs now."""
        self.thread: Thread | None = None
        self.failures: list[BaseException] = []
        self._schedule: list[tuple[float, int, Process | None, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._back = _closed_gate()
        self._processes: list[Process] = []

    def make_process(self, clock: MachineClock) -> Process:
        made = Process(self, clock)
        self._processes.append(made)
        return made

    def later(self, delay_s: float, call: Callable[[], object], process: Process | None = None) -> None:
        """Call it then; with a process: as its code, once it is not paused, and never if it has ended."""
        at_s = self.now_s + max(LEAST_S, delay_s)
        heapq.heappush(self._schedule, (at_s, next(self._numbers), process, call))

    def run(self, until_s: float) -> None:
        """Raises what a simulated thread has raised."""
        while self._schedule and self._schedule[0][0] <= until_s:
            at_s, _, process, call = heapq.heappop(self._schedule)
            self.now_s = max(self.now_s, at_s)
            if process is not None:
                if not process.is_alive:
                    continue
                if process.paused_until_s > self.now_s:
                    self.later(process.paused_until_s - self.now_s, call, process)
                    continue
            before, self.process = self.process, process
            call()
            self.process = before
            if self.failures:
                raise self.failures[0]
        self.now_s = max(self.now_s, until_s)

    def close(self) -> None:
        """End all processes, and so their threads."""
        for each in self._processes:
            each.kill()

    def spawn(self, process: Process, call: Callable[[], object]) -> Thread:
        before, self.process = self.process, process
        try:
            made = Thread(call)
        finally:
            self.process = before
        made.start()
        return made

    def sleep(self, seconds: float) -> None:
        """Of a simulated thread, by the clock of its machine."""
        thread = self.thread
        assert thread is not None, "only a thread of the simulation waits"
        deadline_s = thread.process.clock.monotonic() + seconds
        while (left_s := deadline_s - thread.process.clock.monotonic()) > 0:
            thread.wait(left_s)

    # Threads: one of them or the world runs.

    def resume(self, thread: Thread) -> None:
        if thread.is_over:
            return
        before = self.thread, self.process
        self.thread, self.process = thread, thread.process
        thread.go.release()
        self._back.acquire()
        self.thread, self.process = before

    def yield_to(self) -> None:
        self._back.release()


def _closed_gate() -> threading.Lock:
    """Opened by `release`, and closed again by the `acquire` that passes."""
    gate = threading.Lock()
    gate.acquire()
    return gate


_worlds: list[World] = []


def _world() -> World:
    return _worlds[-1]


class Thread:
    """`threading.Thread`, as far as the product uses it."""

    def __init__(
        self, target: Callable[..., object], name: str = "", *, daemon: bool = True, args: tuple[Any, ...] = ()
    ) -> None:
        del daemon  # All of them are.
        self._world = _world()
        process = self._world.process
        assert process is not None, "a thread belongs to a process"
        self.process = process
        self.name = name
        self.go = _closed_gate()
        self.is_over = False
        self._is_started = False
        self._ticket = 0
        self._over = Event()
        self._target, self._arguments = target, args
        self._chance = random.Random(self._world.chance.getrandbits(64))

    def start(self) -> None:
        self._is_started = True
        self.process.threads.append(self)
        threading.Thread(target=self._main, daemon=True).start()
        self.wake()

    def is_alive(self) -> bool:
        return self._is_started and not self.is_over

    def join(self, timeout: float | None = None) -> None:
        self._over.wait(timeout)

    def _main(self) -> None:
        self.go.acquire()
        try:
            if self.process.is_alive:
                self._target(*self._arguments)
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - the simulation raises it
            self._world.failures.append(error)
        self.is_over = True
        self.process.threads.remove(self)
        self._over.set()
        self._world.yield_to()

    def wait(self, seconds: float | None) -> None:
        """Called by this thread: until `wake`, or for so long by its machine's clock. Raises Killed."""
        if not self.process.is_alive:
            raise Killed
        self._ticket += 1
        if seconds is not None:
            self._wake_in(max(0.0, seconds) / self.process.clock.rate)
        self._world.yield_to()
        self.go.acquire()
        if not self.process.is_alive:
            raise Killed

    def wake(self) -> None:
        self._wake_in(self._chance.uniform(0, SWITCH_S))

    def _wake_in(self, seconds: float) -> None:
        ticket = self._ticket

        def resume() -> None:
            if ticket == self._ticket:
                self._ticket += 1
                self._world.resume(self)

        self._world.later(seconds, resume, self.process)


class Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._world = _world()
        self._is_set = False
        self._waiting: list[Thread] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._wait(lambda: self._is_set, timeout)

    def _wake(self) -> None:
        for each in self._waiting:
            each.wake()

    def _wait(self, is_so: Callable[[], object], timeout: float | None) -> bool:
        thread = self._world.thread
        if is_so():
            return True
        assert thread is not None, "only a thread of the simulation waits"
        clock = thread.process.clock
        deadline_s = None if timeout is None else clock.monotonic() + timeout
        self._waiting.append(thread)
        try:
            while not is_so():
                left_s = None if deadline_s is None else deadline_s - clock.monotonic()
                if left_s is not None and left_s <= 0:
                    return False
                thread.wait(left_s)
        finally:
            self._waiting.remove(thread)
        return True


class Condition(Event):
    """`threading.Condition`: a thread is never interrupted but in a wait, so the lock is none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> bool:
        return self._wait(predicate, timeout)

    def notify_all(self) -> None:
        self._wake()


class Loop(asyncio.BaseEventLoop):
    """An asyncio loop in a simulated thread. Sockets are those of `simulated_network`."""

    def __init__(self) -> None:
        super().__init__()
        thread = _world().thread
        assert thread is not None, "a loop belongs to a thread of the simulation"
        self._its_thread = thread
        self._selector: Any = self

    def time(self) -> float:
        return self._its_thread.process.clock.monotonic()

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None or timeout > 0:
            self._its_thread.wait(timeout)
        return []

    def _process_events(self, _events: list[object]) -> None:
        """What arrives at a socket wakes the loop by a callback."""

    def _write_to_self(self) -> None:
        self._its_thread.wake()

    async def sock_accept(self, sock: Any) -> Any:
        return await sock.arrived(self, sock.accept_now)

    async def sock_recv(self, sock: Any, nbytes: int) -> bytes:
        found: bytes = await sock.arrived(self, lambda: sock.take_now(nbytes))
        return found

    async def sock_sendall(self, sock: Any, data: Any) -> None:
        sock.sendall(data)


def run_loop(main: Any) -> None:
    """`asyncio.run`."""
    loop = Loop()
    try:
        loop.run_until_complete(main)
    except Killed:
        loop._selector = SimpleNamespace(select=lambda _timeout: [])  # It unwinds without any time.
        loop.run_until_complete(_unwound(asyncio.all_tasks(loop)))
        raise
    finally:
        loop.close()


async def _unwound(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def product_threads(world: World, *modules: ModuleType) -> Iterator[None]:
    """Within, these modules make threads of `world`, and wait in its time."""
    kinds: dict[str, Any] = {
        "threading": SimpleNamespace(Thread=Thread, Event=Event, Condition=Condition, Lock=contextlib.nullcontext),
        "time": SimpleNamespace(**{**vars(time), "sleep": world.sleep}),
        "asyncio": SimpleNamespace(**{**vars(asyncio), "run": run_loop}),
    }
    before = [(module, name, vars(module)[name]) for module in modules for name in kinds if name in vars(module)]
    _worlds.append(world)
    for module, name, _ in before:
        setattr(module, name, kinds[name])
    try:
        yield
    finally:
        world.close()
        for module, name, value in before:
            setattr(module, name, value)
        _worlds.pop()
