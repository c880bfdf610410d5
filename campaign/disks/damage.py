"""Rounds of damage: a ground is built once, and copies of it are damaged in one file each, of every kind in turn."""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from campaign.disks.ground import Ground, Verdict
from campaign.part import Finding, Outcome

SECTOR_BYTES = 512
GONE = "is gone"
Damage = Callable[[Path, random.Random], str]


def flip(path: Path, chance: random.Random) -> str:
    """One bit to three, where the file holds something."""
    data = bytearray(path.read_bytes())
    used = len(data.rstrip(b"\0")) or len(data)
    if not used:
        return ""
    reported = []
    for _ in range(chance.choice([1, 1, 2, 3])):
        at, bit = chance.randrange(used), chance.randrange(8)
        data[at] ^= 1 << bit
        reported.append(f"bit {bit} of byte {at}")
    _overwrite(path, data)
    return "flipped " + ", ".join(reported)


def blank(path: Path, chance: random.Random) -> str:
    """A sector reads as zeros: a disk that forgot it."""
    data = bytearray(path.read_bytes())
    used = len(data.rstrip(b"\0"))
    if not used:
        return ""
    sector = chance.randrange(-(-used // SECTOR_BYTES)) * SECTOR_BYTES
    end = min(sector + SECTOR_BYTES, len(data))
    data[sector:end] = bytes(end - sector)
    _overwrite(path, data)
    return f"bytes {sector} to {end} are zero"


def vanish(path: Path, _: random.Random) -> str:
    """The file is gone. Not the oldest of a log: that looks like cleaning, and is taken for it."""
    if path.parent.name == "commitlog" and path == min(path.parent.iterdir()):
        return ""
    path.unlink()
    return GONE


def _overwrite(path: Path, data: bytes | bytearray) -> None:
    """In place, and with the times that it had: a disk that goes bad changes neither."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


class _Listener(logging.Handler):
    """Keeps errors that are logged: an operator reads them, too."""

    def __init__(self, reported: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._reported = reported

    def emit(self, record: logging.LogRecord) -> None:
        self._reported.append(f"log: {record.getMessage()}")


@contextmanager
def listening() -> Iterator[list[str]]:
    """The errors that are logged meanwhile; no other handler gets them, as damage is logged at length."""
    logger, reported = logging.getLogger("tiermq"), list[str]()
    listener, propagates = _Listener(reported), logger.propagate
    logger.addHandler(listener)
    logger.propagate = False
    try:
        yield reported
    finally:
        logger.removeHandler(listener)
        logger.propagate = propagates


class DamagePart:
    """One sort of damage over some grounds."""

    def __init__(
        self, name: str, title: str, damages: list[Damage], grounds: list[Ground], *, tries: int = 3, rounds: int = 40
    ) -> None:
        self.name = name
        self.title = title
        self.rounds = rounds
        self._damages = damages
        self._grounds = grounds
        self._tries = tries

    def missing(self) -> str:
        return ""

    def round(self, seed: int, scratch: Path) -> Outcome:
        """Every kind of file of one ground, damaged a few times."""
        outcome = Outcome()
        ground = self._grounds[seed % len(self._grounds)]
        chance = random.Random(seed)
        sound = scratch / "sound"
        with listening():
            expected = ground.build(sound, seed)
        kinds: dict[str, list[Path]] = {}
        for path in sorted(each.relative_to(sound) for each in sound.rglob("*") if each.is_file()):
            if kind := ground.kind_of(path):
                kinds.setdefault(kind, []).append(path)
        for kind, paths in sorted(kinds.items()):
            outcome.counts[f"kind: {ground.name}, {kind}"] += 1
            for _ in range(self._tries):
                self._try(ground, kind, chance.choice(paths), sound, expected, chance, seed, outcome)
        return outcome

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        """A round's findings are one damage each already."""
        found = self.round(seed, scratch).findings
        return found[0] if found else None

    def _try(
        self,
        ground: Ground,
        kind: str,
        path: Path,
        sound: Path,
        expected: Any,
        chance: random.Random,
        seed: int,
        outcome: Outcome,
    ) -> None:
        damaged = sound.with_name("damaged")
        shutil.copytree(sound, damaged)
        reported = chance.choice(self._damages)(damaged / path, chance)
        if reported:
            outcome.counts["damages"] += 1
            outcome.counts["bits_flipped"] += reported.count("bit ")
            with listening() as logged:
                verdict = ground.judge(damaged, expected)
            verdict.reported += logged
            if kind in ground.unsummed and reported != GONE:
                outcome.counts["lost_unsummed"] += len(verdict.lost)
                verdict.lost = []
            step = f"{ground.name}: {kind}: {path}: {reported}"
            outcome.findings += [
                Finding(*finding, seed, (step,)) for finding in judged(verdict, kind in ground.repaired)
            ]
            outcome.counts["reported" if verdict.reported else "harmless"] += 1
            outcome.counts["served_damaged"] += len(verdict.wrong)
            outcome.counts["lost_untold"] += 0 if verdict.reported else len(verdict.lost)
        shutil.rmtree(damaged)


def judged(verdict: Verdict, is_repaired: bool) -> list[tuple[str, str]]:
    """(promise, what was found) of what must not be."""
    found = []
    if verdict.wrong:
        found.append(("Damage is never served as a message.", f"{len(verdict.wrong)}: {verdict.wrong[0]}"))
    if verdict.lost and not verdict.reported:
        found.append(("Damage that costs something is reported.", f"{len(verdict.lost)} lost: {verdict.lost[:3]}"))
    if verdict.lost and is_repaired:
        text = f"{len(verdict.lost)} lost: {verdict.lost[:3]}; reported: {verdict.reported[:1]}"
        found.append(("What is known from elsewhere is repaired.", text))
    return found
