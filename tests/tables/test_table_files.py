"""Files of a table, so that every queue's messages come one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import BadOption
from tiermq.tables.commit_journal import ExportedRanges
from tiermq.tables.table_files import in_order, open_table, table_files
from tiermq.tier.names import QueueKey

Q0, Q1 = (QueueKey("c", "b", "orders", number) for number in range(2))


def ranges(*each: tuple[QueueKey, int, int]) -> ExportedRanges:
    made = ExportedRanges()
    for queue, begin, end in each:
        made.add(queue, begin, end)
    return made


def test_what_was_filled_in_later_comes_first() -> None:
    files = {
        "data/part-1": ranges((Q0, 50, 90)),
        "data/part-2": ranges((Q0, 0, 50), (Q1, 0, 10)),
        "data/part-3": ranges((Q1, 10, 20)),
        "data/part-0": ranges((Q1, 20, 30)),
    }
    assert in_order(files) == (["data/part-2", "data/part-1", "data/part-3", "data/part-0"], ())


def test_files_that_say_nothing_come_by_their_names() -> None:
    assert in_order({"x/b": ExportedRanges(), "y/a": ExportedRanges()}) == (["y/a", "x/b"], ())
    assert in_order({}) == ([], ())


def test_queues_that_lie_crosswise_are_reported() -> None:
    order, notes = in_order({"a": ranges((Q0, 0, 5), (Q1, 5, 9)), "b": ranges((Q0, 5, 9), (Q1, 0, 5))})
    assert order == ["a", "b"]
    assert "crosswise" in notes[0]


@given(st.permutations(range(8)), st.permutations(range(8)))
def test_every_queue_is_in_order_however_files_are_called(names: list[int], starts: list[int]) -> None:
    files = {f"part-{name}": ranges((Q0, 10 * at, 10 * at + 10)) for name, at in zip(names, starts, strict=True)}
    order, notes = in_order(files)
    assert [files[name].of(Q0)[0][0] for name in order] == list(range(0, 80, 10))
    assert notes == ()


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_table_that_does_not_exist_is_named(tmp_path: Path, kind: str) -> None:
    to = "iceberg:lake.t" if kind == "iceberg" else f"{kind}:{tmp_path}/lake"
    with pytest.raises(BadOption, match="expected a table that was exported, found none"):
        table_files(to, f"sqlite:///{tmp_path}/c.db" if kind == "iceberg" else None, ["body"])


@pytest.mark.parametrize("text", ["/lake/orders", "orc:/lake", "parquet:", "delta"])
def test_what_names_no_table_is_refused_with_examples(text: str) -> None:
    with pytest.raises(BadOption, match="parquet:/lake/orders, delta:s3://bucket/orders or iceberg:lake.orders"):
        open_table(text)


def test_a_catalogue_is_for_iceberg_and_iceberg_needs_one() -> None:
    with pytest.raises(BadOption, match="are for iceberg"):
        open_table("parquet:/x", catalog="sqlite:////x.db")
    with pytest.raises(BadOption, match="iceberg:<namespace>.<table> and a catalogue"):
        open_table("iceberg:lake.orders")


def test_the_kinds_are_what_they_are_called(tmp_path: object) -> None:
    assert open_table(f"parquet:{tmp_path}/p").kind == "parquet"
    assert open_table(f"delta:{tmp_path}/d").kind == "delta"
    assert open_table("iceberg:a.b", catalog=f"sqlite:///{tmp_path}/c.db").kind == "iceberg"
