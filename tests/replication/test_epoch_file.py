"""Which master wrote which part of a log: the file, and up to where two logs are the same."""

from __future__ import annotations

import contextlib
import itertools
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.simulated_files import SimulatedFileAccess
from small_store import power_cut
from tiermq.errors import ReplicationError, StoreDamaged
from tiermq.replication.epoch_file import (
    EpochEntry,
    EpochFile,
    consistent_end,
    decode_epochs,
    encode_epochs,
    entry_at,
    other_terms,
)

PATH = "/store/epochFileCheckpoint"


def epoch_file(*entries: tuple[int, int]) -> tuple[EpochFile, SimulatedFileAccess]:
    access = SimulatedFileAccess()
    access.make_directories("/store")
    made = EpochFile(access, PATH)
    for each in entries:
        assert made.append(*each)
    return made, access


def lists(*entries: tuple[int, int]) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(*each) for each in entries)


def test_the_file_is_that_of_a_running_rocketmq() -> None:
    made, access = epoch_file((1, 0))
    assert access.read_bytes(PATH) == b"1\n1725254278\n1-0\n"
    assert decode_epochs(b"2\n0\n1-0\n3-50\n") == lists((1, 0), (3, 50)), "a checksum of 0 is not checked"
    assert made.last_epoch == 1


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 10_000)), min_size=1, max_size=20))
def test_every_list_reads_as_it_was_written(steps: list[tuple[int, int]]) -> None:
    entries, epoch, start = [], 0, 0
    for rise, length in steps:
        epoch, start = epoch + rise, start + length
        entries.append(EpochEntry(epoch, start))
    assert decode_epochs(encode_epochs(entries)) == tuple(entries)


def test_no_changed_byte_goes_unnoticed() -> None:
    entries = lists((1, 0), (2, 4096), (7, 10_000))
    data = encode_epochs(entries)
    for at in range(len(data)):
        for other in b"0123456789-\n\x00":
            changed = data[:at] + bytes([other]) + data[at + 1 :]
            if changed != data:
                with contextlib.suppress(StoreDamaged):
                    assert decode_epochs(changed) == entries, changed


@pytest.mark.parametrize(
    "data", [b"", b"0\n0\n", b"1\n0\n", b"2\n0\n2-0\n1-5\n", b"2\n0\n1-9\n2-5\n", b"1\n0\n1-2-3\n"]
)
def test_what_is_no_list_is_refused(data: bytes) -> None:
    with pytest.raises(StoreDamaged, match="expected rising epochs"):
        decode_epochs(data)


def test_an_entry_survives_a_power_cut_and_its_predecessor_is_the_backup() -> None:
    made, access = epoch_file((1, 0), (2, 100))
    after = power_cut(access)
    assert EpochFile(after, PATH).entries == made.entries
    assert after.read_bytes(PATH + ".bak") == encode_epochs(lists((1, 0)))


def test_a_slave_notes_each_epoch_once_and_refuses_one_that_starts_before_the_last() -> None:
    made, _ = epoch_file((1, 0), (3, 100))
    assert not made.append(3, 100)
    assert not made.append(2, 500)
    with pytest.raises(ReplicationError, match="expected epoch 4 to start behind 100"):
        made.append(4, 99)
    assert made.append(5, 100), "nothing was written in epoch 3"
    assert made.entries == lists((1, 0), (3, 100), (5, 100))


def test_a_master_begins_its_epoch_at_the_end_and_the_first_one_covers_the_log() -> None:
    made, access = epoch_file()
    made.begin(1, 4096, 9000)
    made.begin(1, 4096, 9500)
    made.begin(4, 4096, 9900)
    assert EpochFile(access, PATH).entries == lists((1, 4096), (4, 9900))
    with pytest.raises(ReplicationError, match="there is a newer master"):
        made.begin(3, 4096, 9999)


def test_a_cut_drops_the_epochs_behind_it_and_an_empty_list_is_no_file() -> None:
    made, access = epoch_file((1, 0), (2, 100), (3, 200))
    made.cut(200)
    assert EpochFile(access, PATH).entries == lists((1, 0), (2, 100))
    made.cut(0)
    assert EpochFile(power_cut(access), PATH).entries == ()


def test_epochs_go_with_the_files_that_are_deleted_at_the_front() -> None:
    made, access = epoch_file((1, 0), (2, 100), (3, 200))
    made.drop_prefix(100)
    assert made.entries == lists((2, 100), (3, 200))
    made.drop_prefix(5000)
    assert EpochFile(access, PATH).entries == lists((3, 200))


def test_an_epoch_without_bytes_stays_at_the_front_of_a_log_that_it_shares_with_a_replaced_master() -> None:
    made, _ = epoch_file((1, 0))
    made.begin(2, 0, 0)
    made.drop_prefix(0)
    assert made.entries == lists((1, 0), (2, 0))
    assert consistent_end(lists((1, 0)), 2_895, made.entries, 108) == 0, "it has written, and nobody had it"


def test_a_byte_belongs_to_the_newest_epoch_that_starts_at_it_or_before() -> None:
    entries = lists((1, 10), (2, 100), (4, 100), (5, 200))
    assert entry_at(entries, 9) is None
    assert entry_at(entries, 99) == (EpochEntry(1, 10), 100)
    assert entry_at(entries, 100) == (EpochEntry(4, 100), 200)
    found = entry_at(entries, 10**9)
    assert found is not None
    assert found[0] == EpochEntry(5, 200)


def test_logs_without_an_epoch_in_common_are_not_consistent() -> None:
    assert consistent_end(lists((1, 0)), 50, lists((2, 0)), 80) is None
    assert consistent_end((), 50, lists((2, 0)), 80) is None
    assert consistent_end((), 0, lists((2, 0)), 80) == 0
    assert consistent_end(lists((1, 0), (3, 90)), 80, lists((1, 0), (2, 85)), 99) == 80, "no byte of epoch 3 came"


class Log(NamedTuple):
    """A replica: the epoch of each of its bytes, and its entries."""

    data: list[int]
    entries: list[EpochEntry]


def followed(slave: Log, master: Log, count: int) -> None:
    """What a slave does that connects to a master, and gets up to `count` bytes."""
    common = consistent_end(slave.entries, len(slave.data), master.entries, len(master.data))
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(slave.data, master.data, strict=False))
    assert (common or 0) == sum(1 for _ in same), (slave, master)
    if common is None:
        return  # Not a byte in common: it is refused.
    del slave.data[common:]
    slave.entries[:] = [each for each in slave.entries if each.start < common]
    for at in range(common, min(common + count, len(master.data) + 1)):
        found = entry_at(master.entries, at)
        assert found is not None
        if not slave.entries or found[0].epoch > slave.entries[-1].epoch:
            slave.entries.append(found[0])
        slave.data.extend(master.data[at : at + 1])


@given(
    st.lists(
        st.tuples(st.sampled_from(["elect", "write", "follow"]), st.integers(0, 2), st.integers(0, 4)),
        max_size=60,
    )
)
def test_the_consistent_end_is_the_end_of_the_common_bytes_whoever_was_elected(
    steps: list[tuple[str, int, int]],
) -> None:
    """Any replica may be elected, also one that lacks bytes: what the others have more must be found, and no more."""
    logs = [Log([], []) for _ in range(3)]
    master, epoch = 0, 1
    logs[0].entries.append(EpochEntry(1, 0))
    for action, who, count in steps:
        if action == "elect" and logs[who].entries:
            master, epoch = who, epoch + 1
            logs[who].entries.append(EpochEntry(epoch, len(logs[who].data)))
        elif action == "write":
            logs[master].data.extend([epoch] * count)
        elif action == "follow" and who != master:
            followed(logs[who], logs[master], count)


def test_epochs_of_one_number_and_two_masters_have_nothing_in_common() -> None:
    entries = lists((1, 0), (2, 500))
    assert other_terms({1: "a", 2: "b"}, {1: "a", 2: "c"}) == {2}
    assert other_terms({1: "a"}, {2: "c"}) == set(), "what is not known on both sides says nothing"
    assert consistent_end(entries, 900, entries, 800) == 800
    assert consistent_end(entries, 900, entries, 800, {2}) == 500
    assert consistent_end(entries, 900, entries, 800, {1, 2}) is None


def test_each_epoch_that_a_master_begins_has_a_term_of_its_own_and_slaves_learn_it() -> None:
    made, access = epoch_file()
    made.begin(1, 0, 0)
    made.begin(2, 0, 70)
    terms = dict(made.terms)
    assert len(set(terms.values())) == len(terms) == 2
    again = EpochFile(power_cut(access), PATH)
    assert again.terms == terms
    again.begin(2, 0, 99)
    assert again.terms == terms, "the same epoch after a restart"
    slave, _ = epoch_file((1, 0))
    slave.learn(terms)
    assert slave.terms == terms
