"""The sparse time index: few entries, and always a window that two reads can answer from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiermq.tier.metadata.metadata_values import EntrySpacing, TimeEntry, entry_for_commit, sample

STRETCH = EntrySpacing(messages_max=10, bytes_max=1000)


def sampled(batches: list[tuple[int, int, int]]) -> tuple[list[TimeEntry], list[tuple[int, int]]]:
    """Entries of batches (messages, bytes, ms passed), and all messages as (store ms, log offset)."""
    entries: list[TimeEntry] = []
    messages: list[tuple[int, int]] = []
    log, now_ms = 0, 0
    for count, size, passed_ms in batches:
        now_ms += passed_ms
        first = TimeEntry(len(messages), now_ms, log)
        messages += [(now_ms, log + size * index // count) for index in range(count)]
        log += size
        entry = entry_for_commit(entries[-1] if entries else None, first, len(messages), log, STRETCH)
        if entry is not None:
            entries.append(entry)
    return entries, messages


BATCHES = st.lists(st.tuples(st.integers(1, 10), st.integers(10, 1000), st.integers(0, 3)), min_size=1, max_size=30)


def test_the_first_commit_of_a_queue_has_an_entry() -> None:
    first = TimeEntry(100, 5, 0)
    assert entry_for_commit(None, first, 101, 50) == first


def test_a_commit_that_stays_within_the_chunk_needs_none() -> None:
    last = TimeEntry(0, 1, 0)
    first = TimeEntry(4000, 9, 3 << 20)
    assert entry_for_commit(last, first, 4096, 4 << 20) is None
    assert entry_for_commit(last, first, 4097, 4 << 20) == first
    assert entry_for_commit(last, first, 4096, (4 << 20) + 1) == first


@given(BATCHES)
def test_no_chunk_is_longer_than_two_reads_can_fetch(batches: list[tuple[int, int, int]]) -> None:
    entries, messages = sampled(batches)
    ends = [*entries[1:], TimeEntry(len(messages), 0, sum(size for _, size, _ in batches))]
    for entry, end in zip(entries, ends, strict=True):
        assert end.queue_offset - entry.queue_offset <= STRETCH.messages_max
        assert end.log_offset - entry.log_offset <= STRETCH.bytes_max


@given(BATCHES)
def test_there_are_not_more_entries_than_the_size_of_the_queue_asks_for(batches: list[tuple[int, int, int]]) -> None:
    entries, messages = sampled(batches)
    total = sum(size for _, size, _ in batches)
    # Any two neighbouring stretches together are longer than one spacing may be.
    assert len(entries) <= 2 * (len(messages) / STRETCH.messages_max + total / STRETCH.bytes_max) + 2


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.integers(0, 60))
def test_a_sample_of_messages_that_are_there_already_is_as_dense(sizes: list[int], cut: int) -> None:
    """Taken in two pieces, as a walk in chunks takes it."""
    log_offsets = [sum(sizes[:index]) for index in range(len(sizes))]
    cut = min(cut, len(sizes))
    first = sample(None, range(cut), log_offsets[:cut], STRETCH)
    last = TimeEntry(first[-1], 0, log_offsets[first[-1]]) if first else None
    chosen = first + [cut + index for index in sample(last, range(cut, len(sizes)), log_offsets[cut:], STRETCH)]
    assert chosen[0] == 0
    assert chosen == sorted(set(chosen))
    for begin, end in zip(chosen, [*chosen[1:], len(sizes) - 1], strict=True):
        assert end - begin <= STRETCH.messages_max
        # The last message of a spacing begins within it; only its own length may reach beyond.
        assert end == begin or log_offsets[end - 1] - log_offsets[begin] <= STRETCH.bytes_max
