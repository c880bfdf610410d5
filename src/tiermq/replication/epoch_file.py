"""EpochFile: which master wrote which part of the log, by epoch; RocketMQ's `epochFileCheckpoint`.

    2\n               entries
    2114398103\n      CRC-32 of the entry lines, sign bit cleared; 0: not checked
    1-0\n             epoch-start, ascending; an epoch ends where the next one starts, the last one with the log
    3-8190\n

One master writes in an epoch, so two logs that have an entry in common have the same bytes from its start on, up to
where the epoch ends in one of them: `consistent_end`. An election whose state was lost begins again at epoch 1, and
then two masters have written in epochs of one number. So each epoch has a random term beside it:

    <store>/epochTerms.json       {"1": "f3a4…", "3": "09bc…"}

Slaves learn the terms of their master's epochs at its client port; RocketMQ's masters have none. Epochs whose terms are
known on both sides and differ have nothing in common.

Invariants: epochs rise, starts do not fall; an entry is on disk before a byte of its epoch is in the log, and its term
before the entry. Two entries with one start are kept: nothing was written in the first. (RocketMQ drops the second, and
labels its bytes with the first.) An empty list is no file.
Threads: one thread changes a file; `entries` is immutable, and read by any.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tiermq.errors import ReplicationError, StoreDamaged
from tiermq.files.config_file import BACKUP_SUFFIX
from tiermq.files.file_access import FileAccess
from tiermq.message.crc import crc32
from tiermq.settings import LONG_MAX

FILE = "epochFileCheckpoint"
TERMS_FILE = "epochTerms.json"


class EpochEntry(NamedTuple):
    """An epoch, and the physical offset of its first byte."""

    epoch: int
    start: int


def encode_epochs(entries: Sequence[EpochEntry]) -> bytes:
    lines = "".join(f"{epoch}-{start}\n" for epoch, start in entries).encode()
    return b"%d\n%d\n" % (len(entries), crc32(lines) & 0x7FFFFFFF) + lines


def decode_epochs(data: bytes) -> tuple[EpochEntry, ...]:
    """Raises StoreDamaged."""
    count, _, rest = data.partition(b"\n")
    checksum, _, lines = rest.partition(b"\n")
    try:
        entries = tuple(EpochEntry(*map(int, line.split(b"-"))) for line in lines.splitlines())
        is_right = len(entries) == int(count) > 0 and int(checksum) in (0, crc32(lines) & 0x7FFFFFFF)
    except (TypeError, ValueError):
        is_right, entries = False, ()
    rises = all(old.epoch < new.epoch and old.start <= new.start for old, new in itertools.pairwise(entries))
    if not is_right or not rises:
        raise StoreDamaged(f"{FILE}: expected rising epochs with their checksum, found {data[:80]!r}")
    return entries


def end_of(entries: Sequence[EpochEntry], at: int, log_end: int) -> int:
    """Where entry number `at` ends, of a log that ends at `log_end`."""
    return entries[at + 1].start if at + 1 < len(entries) else log_end


def entry_at(entries: Sequence[EpochEntry], offset: int) -> tuple[EpochEntry, int] | None:
    """The entry of the byte at `offset`, and where it ends (the newest: without limit); None before the first."""
    for at in range(len(entries) - 1, -1, -1):
        if entries[at].start <= offset:
            return entries[at], end_of(entries, at, LONG_MAX)
    return None


def decode_terms(data: bytes) -> dict[int, str]:
    """Raises StoreDamaged."""
    try:
        return {int(epoch): str(term) for epoch, term in json.loads(data).items()}
    except (ValueError, AttributeError) as error:
        raise StoreDamaged(f"{TERMS_FILE}: expected a term for each epoch, found {data[:80]!r}") from error


def other_terms(local: Mapping[int, str], master: Mapping[int, str]) -> frozenset[int]:
    """Epochs of which another master wrote here than there."""
    return frozenset(epoch for epoch, term in local.items() if master.get(epoch, term) != term)


def consistent_end(
    local: Sequence[EpochEntry],
    local_end: int,
    master: Sequence[EpochEntry],
    master_end: int,
    others: Collection[int] = (),
) -> int | None:
    """Up to where a replica's log is the master's; None when they have no epoch in common. `others`: epochs of another
    master (`other_terms`).

    An empty log is consistent with every other; one with bytes and without epochs is consistent with none.
    """
    if local_end == 0:
        return 0
    ends = {entry: end_of(master, at, master_end) for at, entry in enumerate(master)}
    for at in range(len(local) - 1, -1, -1):
        if local[at] in ends and local[at].epoch not in others:
            # An entry is written before its bytes: the next one may start behind the end of the log.
            return min(end_of(local, at, local_end), ends[local[at]], local_end, master_end)
    return None


class EpochFile:
    """See the module. Every change is on disk when its call returns."""

    def __init__(self, access: FileAccess, path: str) -> None:
        self._access = access
        self._path = path
        self._terms_path = os.path.join(os.path.dirname(path), TERMS_FILE)
        self.entries: tuple[EpochEntry, ...] = access.read_config(path, decode_epochs) or ()
        self.terms: Mapping[int, str] = access.read_config(self._terms_path, decode_terms) or {}
        """By epoch, as far as they are known."""

    @property
    def last_epoch(self) -> int:
        """0 without entries: the first epoch is 1."""
        return self.entries[-1].epoch if self.entries else 0

    def begin(self, epoch: int, log_begin: int, log_end: int) -> None:
        """Become master in `epoch`, of a log in which whole records end at `log_end`.

        The first epoch of a log covers all of it: slaves get no byte without an epoch. The same epoch again, after a
        restart, changes nothing. Raises ReplicationError when another master was elected since.
        """
        if epoch == self.last_epoch:
            return
        if epoch < self.last_epoch:
            raise ReplicationError(
                f"expected an epoch from {self.last_epoch} on, found {epoch}: there is a newer master"
            )
        kept = tuple(each for each in self.entries if each.start <= log_end)
        self._write_terms({**self.terms, epoch: secrets.token_hex(12)})
        self._write((*kept, EpochEntry(epoch, log_end if kept else log_begin)))

    def learn(self, terms: Mapping[int, str]) -> None:
        """Of a slave whose log fits: note the terms of its master's epochs."""
        self._write_terms({**self.terms, **terms})

    def append(self, epoch: int, start: int) -> bool:
        """Of a slave: note the epoch of the bytes that follow. False when it is known. Raises ReplicationError."""
        if self.entries and epoch <= self.last_epoch:
            return False
        if self.entries and start < self.entries[-1].start:
            raise ReplicationError(
                f"expected epoch {epoch} to start behind {self.entries[-1].start}, where epoch {self.last_epoch} does, "
                f"found it at {start}"
            )
        self._write((*self.entries, EpochEntry(epoch, start)))
        return True

    def cut(self, offset: int) -> None:
        """The log was cut at `offset`: drop the epochs from there on."""
        self._write(tuple(each for each in self.entries if each.start < offset))

    def drop_prefix(self, log_begin: int) -> None:
        """Files were deleted at the front: drop the epochs that end before `log_begin`. One without bytes that begins
        there stays: of a replaced master, whose log has bytes of it.
        """
        ends = (end_of(self.entries, at, LONG_MAX) for at in range(len(self.entries)))
        kept = (each for each, end in zip(self.entries, ends, strict=True) if max(end, each.start + 1) > log_begin)
        self._write(tuple(kept))

    def _write_terms(self, terms: Mapping[int, str]) -> None:
        first = self.entries[0].epoch if self.entries else 0
        kept = {epoch: term for epoch, term in sorted(terms.items()) if epoch >= first}
        if kept != self.terms:
            text = json.dumps({str(epoch): term for epoch, term in kept.items()})
            self._access.write_config(self._terms_path, text.encode())
            self.terms = kept

    def _write(self, entries: tuple[EpochEntry, ...]) -> None:
        if entries == self.entries:
            return
        if entries:
            self._access.write_config(self._path, encode_epochs(entries))
        else:
            for path in (self._path + BACKUP_SUFFIX, self._path):  # The backup would be read without the file.
                self._access.remove(path)
            self._access.sync_directory(os.path.dirname(self._path))
        self.entries = entries
