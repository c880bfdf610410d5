"""From a text to a table."""

from __future__ import annotations

import pytest

from tiermq.errors import BadOption
from tiermq.spark.tables.table_target import open_table


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
