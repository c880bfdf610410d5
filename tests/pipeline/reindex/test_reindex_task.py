"""The tasks of a reindex by themselves: pure, over segments of any cut, with errors reported and not raised."""

from __future__ import annotations

import pickle
from dataclasses import replace

from pipeline.job_world import INDEX, LOG, QUEUE, UNITS, JobWorld
from tiermq.pipeline.index_build import StagedKeys
from tiermq.pipeline.reindex.task import FoundKeys, KeyTask, KeyWork, LogChunk, run_key_task


def work(made: JobWorld, chunk: LogChunk) -> KeyWork:
    logs, units = made.world.segments(LOG), made.world.segments(UNITS)
    return KeyWork(QUEUE, 7, chunk, tuple(logs), tuple(units))


def place(made: JobWorld, offset: int) -> int:
    return int.from_bytes(made.world.file().units.read_units(offset, 1)[:8], "big")


def collected(made: JobWorld, chunk: LogChunk, *, is_last: bool = False) -> tuple[FoundKeys, StagedKeys, bytes]:
    wanted = replace(work(made, chunk), is_last=is_last)
    found = run_key_task(pickle.loads(pickle.dumps(KeyTask(made.tier, INDEX, (wanted,)))))
    (keys,) = found.keys
    stored = made.driver.get_object(keys.name)
    assert stored is not None
    return found, keys, bytes(stored.data)


def test_keys_of_a_chunk_are_those_of_its_range_whatever_units_were_read(made: JobWorld) -> None:
    end = made.world.segments(LOG)[-1].end
    found, whole, data = collected(made, LogChunk(0, 30, 0, end))
    assert (whole.count, found.records, found.errors) == (60, 30, ())
    assert (whole.start, whole.stop, len(data)) == (0, end, 60 * 24)
    _, part, some = collected(made, LogChunk(0, 30, place(made, 8), place(made, 23)))
    assert (part.count, part.start, part.stop) == (30, place(made, 8), place(made, 23))
    assert some == data[16 * 24 : 46 * 24]


def test_behind_the_last_message_nothing_is_covered(made: JobWorld) -> None:
    _, keys, _ = collected(made, LogChunk(0, 20, 0, place(made, 25)), is_last=True)
    assert keys.stop == place(made, 20)


def test_a_segment_that_is_missing_is_reported_for_that_chunk_alone(made: JobWorld) -> None:
    good, bad = work(made, LogChunk(0, 5, 0, place(made, 5))), work(made, LogChunk(0, 5, 0, place(made, 5)))
    found = run_key_task(KeyTask(made.tier, INDEX, (good, replace(bad, logs=()))))
    assert [keys.count for keys in found.keys] == [10]
    assert ["expected a segment" in error for error in found.errors] == [True]
