"""Proxy: a TCP server in front of another one, whose weather can be changed while links are open.

    client ── up ──► proxy ──► server          held: nothing is read or passed on, as on a network that lost its way;
           ◄─ down ─       ◄──                 what was sent meanwhile comes when it is let go, as TCP sends it again

A link is reset (RST), ended in good order (FIN), or left half-open on purpose. Everything happens on a loop of its own;
its methods may be called by any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tiermq.remoting.loop_thread import LoopThread
from tiermq.remoting.server import close_listener

READ_BYTES = 16 * 1024
PIECE_S = 0.02
"""A throttled link passes on what it may in so much time, then waits as long."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How the network is now, for all links."""

    delay_s: float = 0.0
    bytes_per_s: int = 0
    hold_up: bool = False
    hold_down: bool = False
    refuse: bool = False


CLEAR = Weather()


class Proxy:
    """See the module."""

    def __init__(self, host: str, port: int, *, listen_host: str = "127.0.0.1", listen_port: int = 0) -> None:
        self._target = (host, port)
        self._thread = LoopThread("proxy")
        self._weather = CLEAR
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()
        self._changed = asyncio.Event()
        try:
            self._server = self._thread.run(self._listen(listen_host, listen_port))
        except BaseException:
            self._thread.stop()
            raise
        self.host = listen_host
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._accepted, host, port)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    # The weather, and what befalls all links at once.

    def set(self, weather: Weather) -> None:
        """From now on, for open links and for new ones."""
        self._thread.call(self._set, weather)

    def _set(self, weather: Weather) -> None:
        self._weather = weather
        self._changed.set()
        self._changed = asyncio.Event()

    def reset_links(self) -> int:
        """Reset all links at once; how many there were."""
        return self._thread.call(lambda: sum(link.end(reset=True) for link in tuple(self._links)))

    def end_links_after(self, count: int, *, reset: bool) -> None:
        """End each link when it has passed on so many bytes more: in the middle of a frame, most likely."""

        def end_all() -> None:
            for link in self._links:
                link.end_after(count, reset=reset)

        self._thread.call(end_all)

    def half_close_links(self) -> None:
        """Tell the server of each link that nothing more will come, and go on passing on its answers."""

        def close_all() -> None:
            for link in self._links:
                link.half_close()

        self._thread.call(close_all)

    @property
    def open_links(self) -> int:
        return len(self._links)

    # Links.

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            _reset(writer)  # The proxy is closed.
        finally:
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts["connections"] += 1
        if self._weather.refuse:
            self.counts["refused"] += 1
            _reset(writer)
            return
        # A network that passes nothing on does not let a connection be made either; the client's is, by us.
        await self.passes(up=True)
        try:
            other_reader, other_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        link = _Link(self, (reader, writer), (other_reader, other_writer))
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    async def passes(self, *, up: bool) -> Weather:
        """Wait until the weather lets something through that way."""
        while self._weather.hold_up if up else self._weather.hold_down:
            await self._changed.wait()
        return self._weather

    def close(self) -> None:
        """Reset everything and end. Twice does no harm."""
        if self._thread.is_running:
            self._thread.run(self._end())
            self._thread.stop()

    async def _end(self) -> None:
        await close_listener(self._server)
        for link in tuple(self._links):
            link.end(reset=True)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # What was reset is closed in the next turn.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One connection to us and one to the server. On the proxy's loop."""

    def __init__(self, proxy: Proxy, client: Streams, server: Streams) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._left: int | None = None
        self._ends_with_reset = True
        self._pumps: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        self._pumps = [
            asyncio.ensure_future(self._pump(self._client[0], self._server[1], up=True)),
            asyncio.ensure_future(self._pump(self._server[0], self._client[1], up=False)),
        ]
        try:
            await asyncio.gather(*self._pumps, return_exceptions=True)
        finally:
            for pump in self._pumps:
                pump.cancel()
            self._close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            while data := await reader.read(READ_BYTES):
                weather = await self._proxy.passes(up=up)
                if weather.delay_s:
                    await asyncio.sleep(weather.delay_s)
                await self._pass_on(data, writer, weather)
            await self._proxy.passes(up=up)
            if writer.can_write_eof():
                writer.write_eof()
            return
        self.end(reset=True)

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter, weather: Weather) -> None:
        step = max(1, int(weather.bytes_per_s * PIECE_S)) if weather.bytes_per_s else len(data)
        for at in range(0, len(data), step):
            piece = data[at : at + step]
            if self._left is not None and len(piece) >= self._left:
                writer.write(piece[: self._left])
                self._proxy.counts["cut_in_frame"] += 1
                self.end(reset=self._ends_with_reset)
                return
            if self._left is not None:
                self._left -= len(piece)
            writer.write(piece)
            self._proxy.counts["bytes"] += len(piece)
            await writer.drain()
            if weather.bytes_per_s:
                await asyncio.sleep(PIECE_S)

    def end_after(self, count: int, *, reset: bool) -> None:
        self._left, self._ends_with_reset = count, reset

    def half_close(self) -> None:
        writer = self._server[1]
        if writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()
        self._pumps[0].cancel()

    def end(self, *, reset: bool) -> bool:
        """End both connections, by RST or by FIN behind what was passed on."""
        if reset:
            for _, writer in (self._client, self._server):
                _reset(writer)
        else:
            self._close()
        for pump in self._pumps:
            pump.cancel()
        return True

    def _close(self) -> None:
        for _, writer in (self._client, self._server):
            writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """An end that the peer sees as "connection reset", with nothing behind it."""
    found = writer.get_extra_info("socket")
    if found is not None and not writer.is_closing():
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
