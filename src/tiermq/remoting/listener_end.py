"""The end of a listener: no connection is lost that is being taken in that moment.

asyncio takes a connection in one turn of its loop, makes its protocol in the next and its transport tells the listener
of itself there. A listener that was closed between the two refuses to hear it, by an assertion that nobody sees, and
the socket stays open without an owner.
"""

from __future__ import annotations

import asyncio

TURNS_UNTIL_SERVED = 4
"""Turns of a loop until a connection that was taken has told its protocol, and the task of one made by
`asyncio.start_server` runs; one to spare."""


async def close_listener(listener: asyncio.Server) -> None:
    """Take nothing more, let what was taken come to its protocol, then close. Twice does no harm."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        for taking in listener.sockets:
            loop.remove_reader(taking.fileno())
    else:  # Others, such as uvloop, take a connection in one go.
        listener.close()
    for _ in range(TURNS_UNTIL_SERVED):
        await asyncio.sleep(0)
    listener.close()
