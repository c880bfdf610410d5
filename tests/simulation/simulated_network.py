"""Network: connections between simulated machines, as TCP has them: bytes arrive in order, late, or after a cut.

The sockets have what `HaMaster` (on a simulated loop) and `HaSlave` (blocking) use of Python's. A cut holds what is
sent that way, and connections cannot be made; when it ends, they go on. All connections of a machine can be reset. A
process that ends closes its sockets; a machine without power does not, and its peers learn nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Self, TypeVar

from simulation.simulated_threads import Event, Loop, Process, World

DELAY_S = (0.0005, 0.02)
SLOW = 0.03
"""Of so many chunks of bytes the delay is a hundred times as long."""
Found = TypeVar("Found")


class Network:
    """See the module."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.listening: dict[str, Listener] = {}
        self._cuts: dict[tuple[str, str], float] = {}
        self._slow: dict[frozenset[str], float] = {}
        self.sockets: list[Socket] = []

    def cut(self, one: str, other: str, until_s: float, *, both_ways: bool) -> None:
        """Between two machines."""
        self._cuts[one, other] = until_s
        if both_ways:
            self._cuts[other, one] = until_s

    def cut_until_s(self, one: str, other: str) -> float:
        return self._cuts.get((one, other), 0.0)

    def reset(self, machine: str) -> None:
        """End all connections of a machine at once, with what was on its way."""
        for each in self.sockets:
            if each.machine == machine:
                each.reset()

    def slow(self, one: str, other: str, until_s: float) -> None:
        """A few chunks a second."""
        self._slow[frozenset((one, other))] = until_s

    def is_slow(self, one: str, other: str) -> bool:
        return self._slow.get(frozenset((one, other)), 0.0) > self.world.now_s

    def heal(self) -> None:
        self._cuts.clear()
        self._slow.clear()

    def forget(self, machine: str) -> None:
        """It has lost its power: ports and connections are gone, and no peer is notified."""
        self.listening = {name: each for name, each in self.listening.items() if each.machine != machine}

    def connect(self, machine: str, process: Process, address: tuple[str, int], timeout_s: float) -> Socket:
        """Of a simulated thread. Raises OSError."""
        world = self.world
        world.sleep(world.chance.uniform(*DELAY_S))
        listener = self.listening.get(f"{address[0]}:{address[1]}")
        host = address[0]
        if max(self.cut_until_s(machine, host), self.cut_until_s(host, machine)) > world.now_s:
            world.sleep(timeout_s)
            raise TimeoutError("timed out")
        if listener is None:
            raise ConnectionRefusedError("connection refused")
        mine, theirs = Socket(self, machine, process), Socket(self, listener.machine, listener.process)
        mine.peer, theirs.peer = theirs, mine
        listener.waiting.append((theirs, (machine, 1)))
        listener.wake()
        return mine


class _Waitable:
    """Something on which a thread or a loop waits."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._event = Event()
        self._futures: list[tuple[Loop, asyncio.Future[None]]] = []

    def wake(self) -> None:
        self._event.set()
        futures, self._futures = self._futures, []
        for loop, future in futures:
            if not loop.is_closed():
                loop.call_soon_threadsafe(lambda future=future: future.done() or future.set_result(None))  # type: ignore[misc]

    async def arrived(self, loop: Loop, look: Callable[[], Found | None]) -> Found:
        while (found := look()) is None:
            future = loop.create_future()
            self._futures.append((loop, future))
            await future
        return found


class Listener(_Waitable):
    """A port of one machine."""

    def __init__(self, network: Network, machine: str, port: int, process: Process) -> None:
        super().__init__(network)
        self.machine, self.process = machine, process
        self.waiting: list[tuple[Socket, tuple[str, int]]] = []
        self._address = (machine, port)
        process.on_end.append(self.close)

    def listen(self) -> None:
        self.network.listening[f"{self._address[0]}:{self._address[1]}"] = self

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def accept_now(self) -> tuple[Socket, tuple[str, int]] | None:
        return self.waiting.pop(0) if self.waiting else None

    def close(self) -> None:
        name = f"{self._address[0]}:{self._address[1]}"
        if self.network.listening.get(name) is self:
            del self.network.listening[name]
        for each, _ in self.waiting:
            each.close()


class Socket(_Waitable):
    """One end of a connection."""

    def __init__(self, network: Network, machine: str, process: Process) -> None:
        super().__init__(network)
        self.machine = machine
        self.peer: Socket | None = None
        self._process = process
        self._inbox = bytearray()
        self._on_its_way: deque[Callable[[Socket], object]] = deque()
        self._is_over = self._is_closed = self._is_reset = False
        self._timeout_s: float | None = None
        self._arrives_s = 0.0
        # Its own, because a loop ends its connections in any order.
        self._chance = random.Random(network.world.chance.getrandbits(64))
        process.on_end.append(self._end)
        network.sockets.append(self)

    def setsockopt(self, *_option: int) -> None:
        """There are none."""

    def settimeout(self, seconds: float) -> None:
        self._timeout_s = seconds

    # What is sent.

    def sendall(self, data: Any) -> None:
        if self._is_reset:
            raise ConnectionResetError("connection reset by peer")
        if self._is_closed:
            raise OSError("bad file descriptor")
        sent = bytes(data)
        self._pass(lambda peer: peer._inbox.extend(sent))

    def sendmsg(self, parts: list[Any]) -> int:
        data = b"".join(map(bytes, parts))
        if self._chance.random() < 0.05:
            raise BlockingIOError
        count = len(data) if self._chance.random() < 0.8 else self._chance.randrange(1, len(data) + 1)
        self.sendall(data[:count])
        return count

    def _pass(self, done: Callable[[Socket], object]) -> None:
        """Let something happen at the other end, behind what was sent before."""
        world, peer = self.network.world, self.peer
        assert peer is not None
        chance = self._chance
        spacing_s = chance.uniform(0.05, 0.3) if self.network.is_slow(self.machine, peer.machine) else 1e-6
        delay_s = chance.uniform(*DELAY_S) * (100 if chance.random() < SLOW else 1)
        self._arrives_s = max(self._arrives_s + spacing_s, world.now_s + delay_s)

        self._on_its_way.append(done)

        def arrive() -> None:
            blocked_s = self.network.cut_until_s(self.machine, peer.machine)
            if blocked_s > world.now_s:
                self._arrives_s = max(self._arrives_s, blocked_s)
                world.later(blocked_s - world.now_s, arrive)
                return
            self._on_its_way.popleft()(peer)  # The oldest, whichever this was.
            peer.wake()

        world.later(self._arrives_s - world.now_s, arrive)

    # What is received.

    def take_now(self, count: int) -> bytes | None:
        """None: nothing yet. Raises OSError."""
        if self._is_reset:
            raise ConnectionResetError("connection reset by peer")
        if self._inbox:
            taken = bytes(self._inbox[:count])
            del self._inbox[:count]
            return taken
        return b"" if self._is_over or self._is_closed else None

    def recv_into(self, buffer: Any) -> int:
        while (data := self.take_now(min(len(buffer), 4096))) is None:
            self._event.clear()
            if not self._event.wait(self._timeout_s):
                raise TimeoutError("timed out")
        buffer[: len(data)] = data
        return len(data)

    def reset(self) -> None:
        for each in (self, self.peer):
            if each is not None:
                each._is_reset = True
                each.wake()

    def shutdown(self, _how: int) -> None:
        self.close()

    def close(self) -> None:
        if not self._is_closed and self._process.is_alive:  # What unwinds of a dead process does nothing.
            self._end()

    def _end(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.network.sockets.remove(self)
            self.wake()
            if self.peer is not None and not self._is_reset:
                self._pass(lambda peer: setattr(peer, "_is_over", True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
