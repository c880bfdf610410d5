"""HaChannel: the bytes of one slave's connection at the HA port, plain as RocketMQ has it, or TLS between our brokers.

    plain   headers and mapped bytes go out in one call, without a copy
    TLS     both sides show a certificate and check the other's; the first byte of a peer without TLS is not 0x16, and
            it is refused by that

Used on the loop of `HaMaster` alone: one task reads, another one writes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Sequence

READ_BYTES = 64 * 1024
TLS_FIRST_BYTE = 0x16


class PlainChannel:
    """See the module."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    async def open(self) -> None:
        """Nothing has to be agreed."""

    async def receive(self) -> bytes:
        """Some bytes; none when the peer has closed the connection. Raises OSError."""
        return await asyncio.get_running_loop().sock_recv(self._connection, READ_BYTES)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._connection, data)

    async def send_all(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Raises OSError."""
        left = deque(buffers)
        while left:
            try:
                sent = self._connection.sendmsg(left)
            except BlockingIOError:
                sent = 0
            while left and sent >= len(left[0]):
                sent -= len(left.popleft())
            if left:  # The socket is full.
                with memoryview(left.popleft())[sent:] as rest:
                    await asyncio.get_running_loop().sock_sendall(self._connection, rest)


class TlsChannel:
    """See the module."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        """`context` is a server's that requires a certificate of its peer."""
        self._connection = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._sending = asyncio.Lock()

    async def open(self) -> None:
        """The handshake. Raises EOFError for a peer that is not let in, and OSError."""
        first = await self._read()
        if first and first[0] != TLS_FIRST_BYTE:
            raise EOFError(
                "expected TLS (haTlsEnable), found a peer that speaks without it: give it haTlsEnable=true and a "
                "certificate; brokers of RocketMQ have no TLS on this port, and cannot follow this one"
            )
        while True:
            try:
                self._object.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._read():
                    raise EOFError("it closed the connection during the TLS handshake") from None
            except ssl.SSLError as error:
                await self._flush()
                raise EOFError(
                    f"expected TLS with a certificate that is trusted here, found: {error.reason or error}"
                ) from error
        await self._flush()

    async def _read(self) -> bytes:
        data = await asyncio.get_running_loop().sock_recv(self._connection, READ_BYTES)
        if data:
            self._incoming.write(data)
        return data

    async def _flush(self) -> None:
        async with self._sending:
            if self._outgoing.pending:
                await asyncio.get_running_loop().sock_sendall(self._connection, self._outgoing.read())

    async def receive(self) -> bytes:
        """Some bytes; none when the peer has closed the connection. Raises OSError."""
        while True:
            try:
                return self._object.read(READ_BYTES)
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._read():
                    return b""

    async def send(self, data: bytes) -> None:
        await self.send_all([data])

    async def send_all(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Raises OSError."""
        for each in buffers:
            rest = memoryview(each)
            while len(rest):
                rest = rest[self._object.write(rest) :]
        await self._flush()


HaChannel = PlainChannel | TlsChannel
