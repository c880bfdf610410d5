"""SyncSet: the replicas that must have a message before it is committed, of a master that was elected.

    away ──has all that is committed──► joining ──has all that was acknowledged without it──► proposed ──► recorded
                                                                                                             │
    away ◄── recorded without it ◄── proposed without it ◄── disconnected, or behind for too long ◄──────────┘

`effective` is everything that is recorded, proposed or joining: a message waits for all of them. So a set that is
recorded late, or whose recording is not known to have failed, never covers less than the election believes.

A master that is about to begin its term has no recorded set yet (`is_recorded`): then nothing is confirmed or proposed.

Proposals are numbered, and a recording is reported with the number of its proposal. Only the report of the newest
proposal settles it: one that is late, or comes twice, has an older number and changes nothing.

Invariants: a replica is proposed only once it has the log up to where it ended after the replica became effective: what
was acknowledged without it is below. Only a recording takes a recorded member out of `effective`.
Pure: the thread of the HA port is the only one that changes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

SAMPLE_S = 0.5


@dataclass(slots=True)
class _Progress:
    """When a member last had everything that the log had at the look before."""

    end: int
    caught_up_s: float


class Progress(NamedTuple):
    """How many replicas must have a message, up to where all of them have the log, and the set to be recorded next."""

    in_sync: int
    confirmed: int
    wanted: frozenset[int] | None


class SyncSet:
    """See the module."""

    def __init__(
        self, own: int, behind_s: float, *, is_recorded: bool = True, numbers: Iterator[int] | None = None
    ) -> None:
        """`behind_s`: for how long a connected member may be behind. `numbers`: of proposals, ascending from 1;
        those who propose to one election share them.
        """
        self.is_recorded = is_recorded
        self.own = own
        self.knows: Callable[[int], bool] = lambda _replica: True
        """Whether an id is that of a replica; others never join."""
        self._behind_s = behind_s
        self.recorded: frozenset[int] = frozenset((own,))
        self.number = 0
        """Of the newest proposal, or recording."""
        self._numbers = itertools.count(1) if numbers is None else numbers
        self._is_proposed = False
        self._unsettled: frozenset[int] = frozenset()  # Members of proposals of which none is known to have failed.
        self._joining: dict[int, int] = {}
        self._progress: dict[int, _Progress] = {}
        self.effective: frozenset[int] = self.recorded
        self._sampled_s = -SAMPLE_S
        self._older_end: int | None = None
        self._newer_end = 0

    @property
    def is_alone(self) -> bool:
        """Whether no other replica must have a message."""
        return self.is_recorded and len(self.effective) == 1

    def note_recorded(self, members: frozenset[int], number: int) -> None:
        """The election has this set, by the proposal of this number; 0: by none."""
        if number < self.number:
            return  # Of an older recording: it no longer holds.
        self.is_recorded, self.number = True, number
        self.recorded = members | {self.own}
        self._is_proposed, self._unsettled = False, frozenset()
        self._joining = {each: end for each, end in self._joining.items() if each not in members}
        self._refresh()

    def advance(
        self, acks: Mapping[int, int], confirmed: int, log_end: Callable[[], int], now_s: float, *, needed: int
    ) -> Progress:
        """Take what replicas that are connected have reported, after everything up to `confirmed` was.

        `needed`: the least number of members with which anything is confirmed.
        """
        if not self.is_recorded:
            return Progress(len(self.effective), confirmed, None)
        was_alone = self.is_alone and needed <= 1
        self.welcome(acks, self._end_before(log_end(), now_s) if was_alone else confirmed)
        end = log_end()  # Behind everything that was acknowledged without a replica that joins now.
        wanted = self.look(acks, end, now_s)
        in_sync = len(self.effective)
        if was_alone:
            confirmed = max(confirmed, end)
        elif in_sync >= needed:
            confirmed = max(confirmed, min(end, confirmed_by(self.effective, self.own, acks, end)))
        return Progress(in_sync, confirmed, wanted)

    def _end_before(self, end: int, now_s: float) -> int:
        """Where the log ended a moment ago: under load, no replica ever has it up to the very end."""
        if self._older_end is None:
            self._older_end, self._newer_end, self._sampled_s = end, end, now_s
        elif now_s - self._sampled_s >= SAMPLE_S:
            self._older_end, self._newer_end, self._sampled_s = self._newer_end, end, now_s
        return self._older_end

    def welcome(self, acks: Mapping[int, int], confirmed: int) -> bool:
        """Let replicas join that have all that is committed; whether one does. `look` follows, with the end of the
        log that is read after this call.
        """
        new = [
            each for each, ack in acks.items() if each not in self.effective and ack >= confirmed and self.knows(each)
        ]
        for each in new:
            self._joining[each] = -1
        if new:
            self._refresh()
        return bool(new)

    def look(self, acks: Mapping[int, int], end: int, now_s: float) -> frozenset[int] | None:
        """The set to be recorded next; None when it is recorded, or while another one is proposed."""
        for each in list(self._joining):
            is_slow = each in acks and self._joining[each] >= 0 and self._is_behind(each, acks[each], end, now_s)
            if each not in self._unsettled and (each not in acks or is_slow):
                del self._joining[each]  # It never counted for anyone else.
            elif self._joining[each] < 0:
                self._joining[each] = end
        self._refresh()
        wanted = {self.own}
        for each in self.recorded - {self.own}:
            if each in acks and not self._is_behind(each, acks[each], end, now_s):
                wanted.add(each)
        wanted |= {each for each, needs in self._joining.items() if acks.get(each, -1) >= needs}
        self._progress = {each: found for each, found in self._progress.items() if each in acks}
        found = frozenset(wanted)
        if self._is_proposed or found == self.recorded:
            return None
        self._is_proposed, self.number, self._unsettled = True, next(self._numbers), found
        self._refresh()
        return found

    def _is_behind(self, replica: int, ack: int, end: int, now_s: float) -> bool:
        progress = self._progress.setdefault(replica, _Progress(end, now_s))
        if ack >= progress.end:
            progress.end, progress.caught_up_s = end, now_s
        return now_s - progress.caught_up_s > self._behind_s

    def _refresh(self) -> None:
        self.effective = self.recorded | self._unsettled | self._joining.keys()


def confirmed_by(members: frozenset[int], own: int, acks: Mapping[int, int], end: int) -> int:
    """Up to where every member has a log that ends at `end`; 0 while one of them is away."""
    return min((acks.get(each, 0) for each in members if each != own), default=end)
