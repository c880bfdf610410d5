"""Upserts: a table has the last write of each key, whatever order runs, crashes and late messages come in."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable

from tables.table_world import SETTINGS, TableWorld
from tiermq import Message
from tiermq.cli.main import cli
from tiermq.errors import TableConflict
from tiermq.pipeline.export.job import export
from tiermq.spark import SparkRunner
from tiermq.store.local_store import LocalStore
from tiermq.tables.body_format import BodyFormat
from tiermq.tables.upsert_rule import ORDER

STEPS = ["write", "create", "merge", "journal", "commit", "finish"]
BODY = BodyFormat.of("json", "id bigint, price double")


class Died(Exception):
    """What a run dies of in these tests."""


class UpsertWorld(TableWorld):
    """Orders with an id; an empty body deletes."""

    def send(self, *writes: tuple[int, float | None], queue: int = 0, tags: str = "t") -> None:
        with LocalStore.open(self.store, background=False, **SETTINGS) as store:
            for key, price in writes:
                body = b"" if price is None else json.dumps({"id": key, "price": price}).encode()
                assert store.put(Message("orders", body, queue, keys=[str(key)], tags=tags)).ok
            store.dispatch_now()
            store.flush()

    def upsert(self, **more: Any) -> Any:
        return self.export(upsert=True, key="id", body=BODY, **more)

    def prices(self) -> dict[int, float]:
        table = self.table()
        ids = table.column("id").to_pylist()
        assert len(ids) == len(set(ids)), "a key has two rows"
        return dict(zip(ids, table.column("price").to_pylist(), strict=True))

    def last_writes(self) -> dict[int, float]:
        """By an export of every message, which knows nothing of upserts."""
        place = self.path / f"all-{random.getrandbits(40):x}"
        export(None, store=self.store, to=f"parquet:{place}")
        found: dict[int, bytes] = {}
        for row in sorted(pq.read_table(place).to_pylist(), key=lambda row: tuple(row[name] for name in ORDER)):
            found[int(row["keys"][0])] = row["body"]
        return {key: json.loads(body)["price"] for key, body in found.items() if body}


@pytest.fixture(params=["delta", "iceberg"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> UpsertWorld:
    return UpsertWorld(tmp_path, request.param)


@pytest.fixture
def delta(tmp_path: Path) -> UpsertWorld:
    return UpsertWorld(tmp_path, "delta")


def run(world: UpsertWorld, *words: str) -> Result:
    to = [f"--{name}={value}" for name, value in world.to.items()]
    head = ["pipeline", "export", "--store", str(world.store), "--topic", "orders", "--master", "here", "--json"]
    return CliRunner().invoke(cli, [*head, *to, "--upsert", *words])


def test_runs_of_the_command_keep_the_last_write_of_each_key_and_deletes(world: UpsertWorld) -> None:
    words = ("--key", "id", "--body", "json", "--schema", "id bigint, price double")
    world.send((1, 1.0), (2, 2.0), (1, 1.5), (3, 3.0))
    first = json.loads(run(world, *words).stdout)["done"]
    assert (first["messages"], first["upserted"], first["deleted"], first["late"]) == (4, 3, 0, 0)
    assert world.prices() == {1: 1.5, 2: 2.0, 3: 3.0}
    world.send((2, None), (1, 9.0), (4, 4.0))
    second = json.loads(run(world, *words).stdout)["done"]
    assert (second["messages"], second["upserted"], second["deleted"]) == (3, 2, 1)
    assert world.prices() == {1: 9.0, 3: 3.0, 4: 4.0}
    assert json.loads(run(world, *words).stdout)["planned"]["messages"] == 0


def test_the_first_key_of_messages_is_the_key_of_rows_without_a_body_format(world: UpsertWorld) -> None:
    world.send((1, 1.0), (1, 2.0), (2, 1.0), (2, None))
    assert run(world).exit_code == 0
    table = world.table()
    assert table.select(["messageKey", "body"]).to_pylist() == [{"messageKey": "1", "body": b'{"id": 1, "price": 2.0}'}]


def test_an_earlier_range_that_comes_later_changes_no_newer_row_and_no_deleted_one(world: UpsertWorld) -> None:
    world.send((1, 1.0), (2, 2.0), (5, 5.0))
    world.send((1, 10.0), (2, None), (3, 3.0))
    world.upsert(offsets=(3, None))
    assert world.prices() == {1: 10.0, 3: 3.0}
    late = world.upsert()
    assert (late.done["upserted"], late.done["late"]) == (1, 2)
    assert world.prices() == {1: 10.0, 3: 3.0, 5: 5.0} == world.last_writes()
    world.send((2, 22.0))
    world.upsert()
    assert world.prices()[2] == 22.0, "a key that was deleted may come back"


@pytest.mark.parametrize("step", STEPS)
def test_an_upsert_that_dies_at_any_step_loses_and_reverts_nothing(world: UpsertWorld, step: str) -> None:
    world.send(*((key, 1.0) for key in range(20)))
    world.upsert()
    world.send(*((key, 2.0 if key % 2 else None) for key in range(10)))

    def dying(name: str) -> None:
        if name == step:
            raise Died(step)

    with pytest.raises(Died):
        world.upsert(step=dying)
    world.send((0, 7.0), (30, 3.0))
    world.upsert()
    assert world.prices() == world.last_writes()
    assert world.upsert().planned["messages"] == 0


def test_any_sequence_of_writes_and_ranges_ends_with_the_last_writes(delta: UpsertWorld) -> None:
    rng = random.Random(17)
    for turn in range(6):
        for queue in (0, 1):
            writes = [(rng.randrange(40), rng.choice([None, rng.random(), rng.random()])) for _ in range(30)]
            delta.send(*writes, queue=queue)
        begin = rng.randrange(30 * (turn + 1))
        delta.upsert(offsets=(begin, begin + 40), wave_files=1, file_bytes=rng.choice([500, 1 << 20]))
    delta.upsert(buckets=5)  # Another number of buckets: every file is merged again.
    assert delta.prices() == delta.last_writes()
    assert all("of00005-" in name for name in DeltaTable(str(delta.root)).file_uris())


def test_a_large_file_without_changed_keys_is_left_as_it_is(delta: UpsertWorld) -> None:
    delta.send(*((key, 1.0) for key in range(100)))
    delta.upsert(buckets=1)
    (before,) = DeltaTable(str(delta.root)).file_uris()
    delta.send((1000, 1.0), (1001, 1.0))
    delta.upsert(file_bytes=100)
    assert before in DeltaTable(str(delta.root)).file_uris()
    delta.send((50, 5.0))
    delta.upsert(file_bytes=100)
    assert before not in DeltaTable(str(delta.root)).file_uris()
    assert delta.prices() == delta.last_writes()


def test_a_table_that_another_program_has_compacted_is_merged_all_the_same(delta: UpsertWorld) -> None:
    delta.send(*((key, 1.0) for key in range(50)))
    delta.upsert()
    DeltaTable(str(delta.root)).optimize.compact()
    delta.send((7, 7.0), (8, None))
    delta.upsert()
    assert delta.prices() == delta.last_writes()


def test_files_that_another_program_replaces_meanwhile_are_a_conflict(world: UpsertWorld) -> None:
    world.send(*((key, 1.0) for key in range(50)))
    world.upsert(buckets=2)
    world.send((7, 7.0))

    def meanwhile(name: str) -> None:
        if name == "journal":
            world.send((7, 8.0))
            world.upsert()

    with pytest.raises(TableConflict):
        world.upsert(step=meanwhile)
    world.upsert()
    assert world.prices() == world.last_writes()


def test_messages_without_a_key_are_kept_beside_the_table_with_the_reason(delta: UpsertWorld) -> None:
    delta.send((1, 1.0))
    delta.put(1, body='{"id": null, "price": 2}', queues=1)
    delta.put(1, body="{", queues=1)
    with LocalStore.open(delta.store, background=False, **SETTINGS) as store:
        assert store.put(Message("orders", b"", 0, keys=["no-number"])).ok
        store.dispatch_now()
    words = ("--key", "id", "--body", "json", "--schema", "id bigint, price double", "--fail-on-bad")
    found = run(delta, *words)
    assert found.exit_code == 1
    assert json.loads(found.stdout)["problems"] == ["3 messages did not fit the table and are beside it"]
    reasons = {row["queueOffset"]: row["reason"] for row in delta.bad_rows()}
    assert (reasons[1], reasons[2][:7], reasons[3]) == ("no key in column id", "no JSON", "no key in KEYS")
    assert delta.prices() == {1: 1.0}


def test_a_tag_or_a_value_of_the_body_may_delete_instead_of_an_empty_body(tmp_path: Path) -> None:
    for rule, kind in (("tag:gone", "delta"), ("column:price=0", "iceberg")):
        world = UpsertWorld(tmp_path / kind, kind)
        world.send((1, 1.0), (2, 2.0))
        world.upsert(tombstone=rule)
        world.send((1, 0.0), tags="gone")
        world.upsert(tombstone=rule)
        assert world.prices() == {2: 2.0}


@pytest.mark.parametrize(
    ("first", "second", "reported"),
    [
        ([], ["--upsert"], "its exports append every message"),
        (["--upsert"], [], "its rows are upserted by messages' first key"),
        (["--upsert"], ["--upsert", "--tombstone", "none"], "with --tombstone empty"),
        ([], ["--key", "id"], "are for upserts"),
        (None, ["--upsert", "--key", "nope"], "key nope: expected a column of the table"),
        (None, ["--upsert", "--key", "properties"], "expected a column of texts or whole numbers"),
        (None, ["--upsert", "--columns", "queueId,body"], "add storeTimestamp, queueOffset, brokerName"),
        (None, ["--upsert", "--tombstone", "soon"], "expected a tombstone of empty"),
    ],
)
def test_what_an_upsert_cannot_keep_is_refused_in_words(
    delta: UpsertWorld, first: list[str] | None, second: list[str], reported: str
) -> None:
    delta.send((1, 1.0))
    words = ["pipeline", "export", "--store", str(delta.store), "--to", delta.to["to"], "--master", "here"]
    if first is not None:
        assert CliRunner().invoke(cli, [*words, *first]).exit_code == 0
    before = DeltaTable(str(delta.root)).version() if first is not None else None
    found = CliRunner().invoke(cli, [*words, *second])
    assert (found.exit_code, "Traceback" in found.output) == (1, False), found.output
    assert reported in found.output
    assert before == (DeltaTable(str(delta.root)).version() if first is not None else None)


def test_parquet_directories_and_two_topics_are_refused(tmp_path: Path) -> None:
    world = UpsertWorld(tmp_path, "parquet")
    world.send((1, 1.0))
    assert "cannot be replaced in one step" in str(run(world).output)
    world.kind = "delta"
    world.put(1, topic="returns")
    words = ["pipeline", "export", "--store", str(world.store), "--to", world.to["to"], "--master", "here", "--upsert"]
    assert "an upsert takes one topic" in CliRunner().invoke(cli, words).output
    assert not (world.root / "_delta_log").exists()


def test_spark_merges_on_executors_and_the_driver_gets_names_of_files_only(spark: Any, delta: UpsertWorld) -> None:
    delta.send(*((key % 70, float(key)) for key in range(300)))
    delta.send(*((key % 70, float(key)) for key in range(300)), queue=1)
    delta.upsert(runner=SparkRunner(spark), file_bytes=8_000, buckets=4)
    delta.send(*((key, None) for key in range(0, 70, 3)))
    delta.upsert(runner=SparkRunner(spark))
    assert delta.prices() == delta.last_writes()
    names = [Path(uri).relative_to(delta.root).as_posix() for uri in DeltaTable(str(delta.root)).file_uris()]
    found = spark.read.parquet(*(str(delta.root / name) for name in names)).select("id", "price").collect()
    assert {row.id: row.price for row in found} == delta.last_writes()


def test_an_upsert_with_a_trigger_merges_what_comes_until_it_is_stopped(delta: UpsertWorld) -> None:
    delta.send((1, 1.0), (2, 2.0))
    stop = threading.Event()
    commits = []

    def then_more(name: str) -> None:
        if name == "finish":
            commits.append(name)
            if len(commits) == 1:
                delta.send((1, 5.0), (2, None))
            else:
                stop.set()

    report = delta.upsert(trigger_s=0.01, stop=stop, step=then_more)
    assert (report.done["upserted"], report.done["deleted"], report.done["commits"]) == (3, 1, 2)
    assert delta.prices() == {1: 5.0}


def test_an_iceberg_table_of_upserts_has_its_key_as_identifier(tmp_path: Path) -> None:
    world = UpsertWorld(tmp_path, "iceberg")
    world.send((1, 1.0))
    world.upsert()
    schema = world.table().schema
    assert schema.field("id").type == pa.int64()
    assert not schema.field("id").nullable
