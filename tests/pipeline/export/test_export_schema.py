"""Schema evolution of exports: bodies that gain, lose and widen columns, and changes that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tables.table_world import TableWorld
from tiermq.cli.main import cli


def run(world: TableWorld, schema: str, *words: str) -> Result:
    to = [f"--{name}={value}" for name, value in world.to.items()]
    head = ["pipeline", "export", "--store", str(world.store), "--topic", "orders", "--master", "here", "--json"]
    return CliRunner().invoke(cli, [*head, *to, "--body", "json", "--schema", schema, *words])


def rows(world: TableWorld, *names: str) -> list[tuple[Any, ...]]:
    table = world.table()
    offsets = table.column("queueOffset").to_pylist()
    columns = [table.column(name).to_pylist() for name in names]
    return [row for _, row in sorted(zip(offsets, zip(*columns, strict=True), strict=True))]


@pytest.fixture(params=["delta", "iceberg"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> TableWorld:
    return TableWorld(tmp_path, request.param)


@pytest.mark.parametrize("upsert", [(), ("--upsert", "--key", "id")], ids=["append", "upsert"])
def test_a_body_that_gains_a_column_adds_it_and_one_that_loses_it_leaves_null(
    world: TableWorld, upsert: tuple[str, ...]
) -> None:
    world.put(1, queues=1, body='{"id": 1}')
    assert run(world, "id bigint", *upsert).exit_code == 0
    world.put(1, queues=1, body='{"id": 2, "price": 2.5, "items": [{"sku": "a"}]}')
    wider = "id bigint, price double, items array<struct<sku: string>>"
    refused = run(world, wider, *upsert)
    assert (refused.exit_code, "--merge-schema adds columns" in refused.output) == (1, True), refused.output
    assert run(world, wider, "--merge-schema", *upsert).exit_code == 0
    assert rows(world, "id", "price", "items") == [(1, None, None), (2, 2.5, [{"sku": "a"}])]
    world.put(1, queues=1, body='{"id": 3, "price": 9}')
    assert run(world, "id int", "--merge-schema", *upsert).exit_code == 0  # An older, narrower schema.
    assert rows(world, "id", "price") == [(1, None), (2, 2.5), (3, None)]


def test_a_new_column_is_added_without_new_messages_too(world: TableWorld) -> None:
    world.put(1, queues=1, body='{"id": 1}')
    assert run(world, "id bigint").exit_code == 0
    reported = json.loads(run(world, "id bigint, note string", "--merge-schema").stdout)
    assert reported["details"]["notes"] == ["the table has new columns: note"]
    assert rows(world, "id", "note") == [(1, None)]
    world.put(1, queues=1, body='{"id": 2, "note": "x"}')
    assert run(world, "id bigint, note string").exit_code == 0
    assert rows(world, "id", "note") == [(1, None), (2, "x")]


def test_a_schema_that_no_body_fits_leaves_no_table_behind(world: TableWorld) -> None:
    world.put(2, queues=1, body='{"id": %d}')
    refused = run(world, "id boolean")
    assert (refused.exit_code, "Nothing was committed" in refused.output) == (1, True), refused.output
    assert run(world, "id bigint").exit_code == 0
    assert len(rows(world, "id")) == 2


def test_a_wider_type_widens_an_iceberg_column_and_is_refused_for_delta(world: TableWorld) -> None:
    world.put(1, queues=1, body='{"id": 1, "price": 1.5}')
    assert run(world, "id int, price float").exit_code == 0
    world.put(1, queues=1, body='{"id": 4294967296, "price": 2.5}')
    found = run(world, "id bigint, price double", "--merge-schema")
    if world.kind == "delta":
        assert (found.exit_code, "delta-rs does not write tables with type widening" in found.output) == (1, True)
        again = run(world, "id int, price float")  # Refused is not lost: what does not fit is beside the table.
        assert json.loads(again.stdout)["done"]["bad"] == 1
        assert "field id: expected int32" in world.bad_rows()[0]["reason"]
        return
    assert found.exit_code == 0, found.output
    assert rows(world, "id", "price") == [(1, 1.5), (4294967296, 2.5)]


def test_an_incompatible_change_is_refused_and_the_messages_are_exported_later(world: TableWorld) -> None:
    world.put(1, queues=1, body='{"id": 1}')
    run(world, "id bigint")
    world.put(1, queues=1, body='{"id": 2}')
    found = run(world, "id string", "--merge-schema")
    assert found.exit_code == 1
    assert "column id: the table has int64, the export string" in found.output
    assert json.loads(run(world, "id bigint").stdout)["done"]["messages"] == 1
    assert rows(world, "id") == [(1,), (2,)]


def test_a_parquet_directory_gets_no_new_columns(tmp_path: Path) -> None:
    world = TableWorld(tmp_path)
    world.put(1, queues=1)
    run(world, "id bigint")
    assert "a Parquet directory has no schema of its own" in run(world, "id bigint, b int", "--merge-schema").output
