"""Both kinds of event loop that programs run our asyncio faces on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def on_uvloop(work: Coroutine[Any, Any, Any]) -> Any:
    return pytest.importorskip("uvloop").run(work)


LOOP_RUNS = [pytest.param(asyncio.run, id="asyncio"), pytest.param(on_uvloop, id="uvloop")]
