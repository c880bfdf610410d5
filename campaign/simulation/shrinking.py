"""Fewer steps that fail in the same way: delta debugging over the list of steps, then over what each of them carries.

A step has a seed of its own, so leaving one out changes nothing about the others; most lives come down to a handful.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from campaign.simulation.steps import Step

Item = TypeVar("Item")
Fails = Callable[[Sequence[Item]], bool]


def fewest(items: Sequence[Item], fails: Fails[Item]) -> list[Item]:
    """A part of `items`, in order, that still fails, and of which none can be left out; `items` must fail."""
    left = list(items)
    pieces = 2
    while len(left) > 1:
        size = -(-len(left) // pieces)
        for start in range(0, len(left), size):
            rest = left[:start] + left[start + size :]
            if rest and fails(rest):
                left = rest
                pieces = max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(len(left), pieces * 2)
    if len(left) == 1 and fails([]):
        return []
    return left


def simplest(steps: Sequence[Step], fails: Fails[Step]) -> list[Step]:
    """The fewest steps, and each of them as plain as it can be."""
    left = fewest(steps, fails)
    changed = True
    while changed:
        changed = False
        for at, step in enumerate(left):
            for plainer in _plainer(step):
                tried = [*left[:at], plainer, *left[at + 1 :]]
                if fails(tried):
                    left, changed = tried, True
                    break
    return left


def _plainer(step: Step) -> Iterator[Step]:
    """Forms of a step with less in it, the plainest first. Every one is smaller, so there is an end."""
    if step.inner is not None and step.kind != "disk_error":
        yield replace(step, inner=None)
    if step.kind == "put_many" and step.values[0] > 1:
        yield replace(step, values=(1,))
        yield replace(step, values=(step.values[0] // 2,))
    if step.inner is not None:
        for inner in _plainer(step.inner):
            yield replace(step, inner=inner)
