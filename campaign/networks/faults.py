"""What can befall a network, schedules of it by a seed, and the shortest schedule that still fails."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass

from campaign.networks.proxy import CLEAR, Proxy, Weather
from campaign.part import Finding


class Fault(enum.Enum):
    """One trouble, until the next step."""

    DELAY = "every piece comes late"
    SLOW = "few bytes a second"
    PARTITION = "nothing passes, either way"
    NO_ANSWERS = "requests pass, answers do not"
    NO_REQUESTS = "answers pass, requests do not"
    REFUSE = "links are reset, new ones refused"
    RESET = "links are reset"
    CUT = "links are reset in the middle of a frame"
    TRUNCATE = "links end in the middle of a frame"
    HALF_CLOSE = "the server is notified that nothing more comes"


@dataclass(frozen=True, slots=True)
class Step:
    """A fault, and how much of it: milliseconds, bytes or bytes a second."""

    fault: Fault
    amount: int

    def __str__(self) -> str:
        return f"{self.fault.name} {self.amount}: {self.fault.value}"


_AMOUNTS: dict[Fault, tuple[int, ...]] = {
    Fault.DELAY: (5, 40, 150),
    Fault.SLOW: (20_000, 200_000),
    Fault.CUT: (1, 3, 9, 200, 5_000, 40_000),
    Fault.TRUNCATE: (1, 3, 9, 200, 5_000, 40_000),
}


FAULTS = tuple(Fault)


def schedule(chance: random.Random, count: int, faults: tuple[Fault, ...] = FAULTS) -> list[Step]:
    """Steps by chance; the same fault never twice in a row."""
    steps: list[Step] = []
    while len(steps) < count:
        fault = chance.choice([fault for fault in faults if not steps or fault is not steps[-1].fault])
        steps.append(Step(fault, chance.choice(_AMOUNTS.get(fault, (0,)))))
    return steps


def apply(step: Step, proxy: Proxy) -> None:
    """Let it befall a proxy, in the place of what was before."""
    weather = {
        Fault.DELAY: Weather(delay_s=step.amount / 1000),
        Fault.SLOW: Weather(bytes_per_s=step.amount),
        Fault.PARTITION: Weather(hold_up=True, hold_down=True),
        Fault.NO_ANSWERS: Weather(hold_down=True),
        Fault.NO_REQUESTS: Weather(hold_up=True),
        Fault.REFUSE: Weather(refuse=True),
    }.get(step.fault, CLEAR)
    proxy.set(weather)
    if step.fault in (Fault.RESET, Fault.REFUSE):
        proxy.reset_links()
    elif step.fault in (Fault.CUT, Fault.TRUNCATE):
        proxy.end_links_after(step.amount, reset=step.fault is Fault.CUT)
    elif step.fault is Fault.HALF_CLOSE:
        proxy.half_close_links()


def shortest(steps: list[Step], fails: Callable[[list[Step]], Finding | None]) -> Finding | None:
    """The finding of the fewest steps that still fail, each left out once; None when not even all of them do."""
    found = fails(steps)
    if found is None:
        return None
    at = 0
    while at < len(steps):
        fewer = steps[:at] + steps[at + 1 :]
        again = fails(fewer)
        if again is None:
            at += 1
        else:
            found, steps = again, fewer
    return Finding(found.promise, found.found, found.seed, tuple(map(str, steps)))
