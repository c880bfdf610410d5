"""How many examples hypothesis draws in a test: few in the default run, more under the profile `thorough`."""

from __future__ import annotations

from hypothesis import settings

DEFAULT = 50
"""Of a test that names no number, in the default run."""


def examples(count: int) -> settings:
    """`count` in the default run, and as many times more as the profile asks for."""
    return settings(max_examples=max(1, count * settings().max_examples // DEFAULT))
