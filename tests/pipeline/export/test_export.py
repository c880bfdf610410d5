"""Exports: each message once, whatever kind of table, whatever dies in between."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from small_store import SIZES
from tables.table_world import SETTINGS, TableWorld
from tiermq import Message
from tiermq.cli.main import cli
from tiermq.errors import BadHistory, BadOption, BadSchema, DataLoss, TableConflict, UnknownColumn
from tiermq.pipeline.export.job import chosen_columns, export
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.offload.job import offload
from tiermq.spark import SparkRunner
from tiermq.store.local_store import LocalStore
from tiermq.tables.body_format import BodyFormat
from tiermq.tables.table_files import open_table
from tiermq.tables.table_iceberg import open_catalog
from tiermq.tier.block_sums import LOG_BLOCK_BYTES
from tiermq.tier.tiered_store import TieredStore

KINDS = ["parquet", "delta", "iceberg"]
STEPS = ["write", "create", "journal", "commit", "finish"]


class Died(Exception):
    """What a run dies of in these tests."""


def dying_at(step: str) -> Any:
    def reported(name: str) -> None:
        if name == step:
            raise Died(step)

    return reported


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> TableWorld:
    return TableWorld(tmp_path, request.param)


@pytest.fixture
def plain(tmp_path: Path) -> TableWorld:
    return TableWorld(tmp_path)


def test_runs_export_what_is_new_and_nothing_twice(world: TableWorld) -> None:
    world.put(30)
    report = world.export()
    assert (report.done["messages"], report.done["commits"], report.problems) == (30, 1, [])
    assert world.rows() == world.wanted()
    again = world.export()
    assert (again.planned["messages"], again.done) == (0, {})
    world.put(15)
    assert world.export().done["messages"] == 15
    assert world.rows() == world.wanted()


@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_dies_at_any_step_loses_and_doubles_nothing(world: TableWorld, step: str) -> None:
    world.put(10, body="no json")
    world.put(20)
    body = BodyFormat.of("json", "id bigint")
    with pytest.raises(Died):
        world.export(body=body, step=dying_at(step))
    world.put(10)
    world.export(body=body)
    good = [each for each in world.wanted() if each[2] >= 5]
    assert world.rows() == good
    if world.kind != "iceberg":
        assert sorted((row["queueId"], row["queueOffset"]) for row in world.bad_rows()) == [
            (queue, offset) for queue in (0, 1) for offset in range(5)
        ]
    assert not list(world.root.glob("_tiermq/staging/*")) or step in ("create", "journal", "commit")


def test_an_export_in_waves_that_dies_keeps_the_waves_it_has_committed(plain: TableWorld) -> None:
    plain.put(400, queues=4)
    taken = []

    def third_write(name: str) -> None:
        taken.append(name)
        if taken.count("write") == 3:
            raise Died

    with pytest.raises(Died):
        plain.export(file_bytes=20_000, wave_files=1, step=third_write)
    before = plain.rows()
    assert 0 < len(before) < 400
    plain.export(file_bytes=20_000, wave_files=1)
    assert plain.rows() == plain.wanted()
    assert set(before) <= set(plain.rows())


def test_of_two_exports_at_once_one_loses_and_has_added_nothing(world: TableWorld) -> None:
    world.put(20)

    def meanwhile(name: str) -> None:
        if name == "commit":
            world.export()

    with pytest.raises(TableConflict, match="another export"):
        world.export(step=meanwhile)
    assert world.rows() == world.wanted()
    assert world.export().planned["messages"] == 0


def test_a_back_fill_adds_what_lies_before_and_between(plain: TableWorld) -> None:
    plain.put(40)
    plain.export(offsets=(5, 10))
    plain.export(offsets=(15, None))
    assert len(plain.rows()) == 2 * (5 + 5)
    assert plain.export().done["messages"] == 2 * (5 + 5)
    assert plain.rows() == plain.wanted()


def test_times_become_offsets_so_that_a_later_export_fills_the_rest(plain: TableWorld) -> None:
    plain.put(10)
    plain.export()
    table = plain.table()
    middle = sorted(table.column("storeTimestamp").to_pylist())[5]
    other: dict[str, Any] = {"to": f"parquet:{plain.path}/other"}
    first = export(None, store=plain.store, since=middle, **other).done["messages"]
    rest = export(None, store=plain.store, **other).done.get("messages", 0)
    assert first >= 5
    assert first + rest == 10


def test_small_ranges_share_a_file_and_long_ones_are_cut(plain: TableWorld) -> None:
    plain.put(100, queues=20)
    assert plain.export().done["files"] == 1
    plain.put(300, topic="long", queues=1)
    report = plain.export(topic="long", file_bytes=10_000)
    assert report.done["files"] > 3
    assert plain.rows() == plain.wanted()


def test_a_dry_run_reports_what_would_be_exported_and_makes_nothing(world: TableWorld) -> None:
    world.put(10)
    report = world.export(dry_run=True)
    assert report.planned["messages"] == 10
    assert report.details["queues"][0]["ranges"] == [[0, 5]]
    assert not world.root.exists()


def test_bad_bodies_are_kept_apart_with_their_reason_and_counted(plain: TableWorld) -> None:
    plain.put(4, body='{"id": %d, "extra": true}', queues=1)
    plain.put(1, body='{"id": "text"}', queues=1)
    plain.put(1, body="{", queues=1)
    report = plain.export(body=BodyFormat.of("json", "id bigint"))
    assert (report.done["messages"], report.done["bad"], report.problems) == (4, 2, [])
    assert plain.table().column("id").to_pylist() == [0, 1, 2, 3]
    assert "body" not in plain.table().column_names
    bad = plain.bad_rows()
    assert [(row["queueOffset"], row["body"]) for row in bad] == [(4, b'{"id": "text"}'), (5, b"{")]
    assert "field id: expected int64" in bad[0]["reason"]


def test_a_column_that_no_body_has_is_noted_and_a_schema_that_fits_none_is_a_problem(plain: TableWorld) -> None:
    plain.put(4, body='{"id": %d}')
    report = plain.export(body=BodyFormat.of("json", "id bigint, nope bigint"))
    assert (report.done["messages"], report.problems) == (4, [])
    assert "no body has a value for nope: each row has null there" in report.details["notes"]
    other = plain.export(to=f"parquet:{plain.root}-other", body=BodyFormat.of("json", "nope bigint"))
    assert other.problems == ["not one body has a value for any column (nope); is it the right schema?"]


def test_too_many_bad_rows_stop_an_export_before_it_commits(plain: TableWorld) -> None:
    plain.put(4, body="no json")
    with pytest.raises(BadSchema, match="at most 2 bad rows, found 4"):
        plain.export(body=BodyFormat.of("json", "id bigint"), max_bad=2)
    assert not list(plain.root.glob("*.parquet"))
    report = plain.export(body=BodyFormat.of("json", "id bigint"), max_bad=4)
    assert report.problems == ["not one body could be decoded; is it the right schema?"]


def test_when_not_one_body_fits_nothing_is_committed_and_the_right_schema_then_fits(world: TableWorld) -> None:
    world.put(4, body='{"id": %d}')
    for _ in range(2):
        with pytest.raises(BadSchema, match="not one of 4 bodies could be decoded.*Nothing was committed"):
            world.export(body=BodyFormat.of("json", "id boolean"))
    report = world.export(body=BodyFormat.of("json", "id bigint"))
    assert (report.done["messages"], report.done["bad"], report.problems) == (4, 0, [])
    world.put(3, body="no json")  # A table that exists goes on.
    report = world.export(body=BodyFormat.of("json", "id bigint"))
    assert (report.done["messages"], report.done["bad"], len(report.problems)) == (0, 3, 1)


def test_a_table_of_bad_rows_alone_moves_on(world: TableWorld) -> None:
    world.put(4, body="no json")
    body = BodyFormat.of("json", "id bigint")
    world.export(body=body, max_bad=4)
    assert world.export(body=body).planned["messages"] == 0
    world.put(2)
    assert world.export(body=body).done["messages"] == 2


def test_a_table_whose_schema_does_not_fit_is_refused_with_what_differs(world: TableWorld) -> None:
    world.put(4)
    world.export(columns=["topic", "queueId", "queueOffset", "body"])
    with pytest.raises(BadSchema, match="column flag: only the export has it"):
        world.export(columns=["topic", "queueId", "queueOffset", "body", "flag"])
    with pytest.raises(BadSchema, match="column body: only the table has it"):
        world.export(columns=["topic", "queueId", "queueOffset"])


def test_messages_that_went_before_they_were_exported_are_an_error_or_a_note(plain: TableWorld) -> None:
    plain.put(3000, queues=1, body="x" * 2000)
    plain.export(offsets=(0, 10))
    for file in sorted((plain.store / "commitlog").iterdir())[:2]:
        file.unlink()
    with pytest.raises(DataLoss, match="offsets 10 to"):
        plain.export()
    report = plain.export(allow_loss=True)
    assert any("lost" in note for note in report.details["notes"])
    offsets = [offset for _, _, offset in plain.rows()]
    assert offsets[:10] == list(range(10))
    assert 500 < offsets[10] < offsets[-1] == 2999
    assert plain.export(allow_loss=True).planned["messages"] == 0
    assert plain.export().details["notes"] == []


def test_a_directory_with_other_files_is_refused(plain: TableWorld) -> None:
    plain.put(1)
    plain.root.mkdir(parents=True)
    (plain.root / "mine.parquet").write_bytes(b"?")
    with pytest.raises(BadOption, match="found mine.parquet"):
        plain.export()


@pytest.mark.parametrize(
    ("more", "kind", "reported"),
    [
        ({"to": "orc:/lake"}, BadOption, "expected a table such as parquet:/lake/orders"),
        ({"tags": ["a"]}, BadOption, "no tags"),
        ({"columns": ["offset_"]}, UnknownColumn, "offset"),
        ({"columns": ["_corrupt"]}, BadSchema, "always be null"),
        ({"topic": "order"}, BadHistory, "did you mean 'orders'"),
        ({"body": BodyFormat.of("json", "topic string")}, BadSchema, "--prefix"),
    ],
)
def test_what_cannot_be_exported_is_reported_before_anything_is_written(
    plain: TableWorld, more: dict[str, Any], kind: type[Exception], reported: str
) -> None:
    plain.put(1)
    with pytest.raises(kind, match=reported):
        plain.export(**more)
    assert not list(plain.root.glob("*.parquet"))


def test_an_export_with_a_trigger_looks_again_until_it_is_stopped(plain: TableWorld) -> None:
    plain.put(5)
    stop = threading.Event()
    runs = []

    def then_more(name: str) -> None:
        if name == "finish":
            runs.append(name)
            if len(runs) == 1:
                plain.put(5)
            else:
                stop.set()

    report = plain.export(trigger_s=0.01, stop=stop, step=then_more)
    assert report.done["messages"] == 10
    assert plain.rows() == plain.wanted()


def test_files_are_zstd_with_statistics_where_they_prune(plain: TableWorld) -> None:
    plain.put(10)
    plain.export()
    (file,) = plain.root.glob("*.parquet")
    group = pq.read_metadata(file).row_group(0)
    columns = {group.column(number).path_in_schema: group.column(number) for number in range(group.num_columns)}
    assert columns["queueOffset"].compression == "ZSTD"
    assert columns["queueOffset"].statistics.max == 4
    assert columns["storeTimestamp"].is_stats_set


def test_columns_without_those_that_say_where_a_message_lay() -> None:
    columns = chosen_columns((), None)
    assert "body" in columns
    assert not {"tier", "segment", "_corrupt"} & set(columns)
    assert "body" not in chosen_columns((), BodyFormat.of("json", "id int"))
    assert "body" in chosen_columns((), BodyFormat.of("json", "id int"), keep_body=True)


def test_spark_exports_and_reads_what_it_exported(spark: Any, tmp_path: Path) -> None:
    world = TableWorld(tmp_path)
    world.put(200, queues=8)
    report = world.export(SparkRunner(spark), file_bytes=8_000)
    assert report.done["files"] > 1
    frame = spark.read.parquet(str(world.root))
    found = sorted((row.topic, row.queueId, row.queueOffset) for row in frame.collect())
    assert found == world.wanted()
    assert world.export(SparkRunner(spark)).planned["messages"] == 0


def test_an_iceberg_table_is_partitioned_sorted_and_knows_its_rows_by_their_id(tmp_path: Path) -> None:
    world = TableWorld(tmp_path, "iceberg")
    world.put(10)
    world.put(6, topic="returns")
    world.export()
    table = open_catalog(world.catalog, None).load_table("lake.orders")
    schema = table.schema()
    names = {field.field_id: field.name for field in schema.fields}
    assert [names[field.source_id] for field in table.spec().fields] == ["topic"]
    assert [names[field.source_id] for field in table.sort_order().fields] == [
        "brokerName", "topic", "queueId", "queueOffset",
    ]  # fmt: skip
    assert [names[each] for each in schema.identifier_field_ids] == ["recordId"]
    assert {task.file.partition[0] for task in table.scan().plan_files()} == {"orders", "returns"}
    assert "commit.retry.num-retries" not in table.properties
    assert world.rows() == world.wanted()
    ids = world.table().column("recordId").to_pylist()
    assert len(set(ids)) == 16
    assert "broker-a/orders/1/4" in ids


def test_what_an_older_export_left_in_the_tables_properties_goes_with_the_next_commit(tmp_path: Path) -> None:
    world = TableWorld(tmp_path, "iceberg")
    world.put(4)
    world.export()
    table = open_catalog(world.catalog, None).load_table("lake.orders")
    with table.transaction() as change:
        change.set_properties({"commit.retry.num-retries": "0"})
    world.put(4)
    world.export()
    assert "commit.retry.num-retries" not in open_catalog(world.catalog, None).load_table("lake.orders").properties


def test_a_table_from_before_there_was_an_id_keeps_the_columns_that_it_has(world: TableWorld) -> None:
    world.put(4)
    before = [name for name in chosen_columns((), None) if name != "recordId"]
    world.export(columns=before)
    world.put(4)
    assert world.export().done["messages"] == 4
    assert world.rows() == world.wanted()
    assert "recordId" not in world.table().column_names


class DamagedTier:
    """A tier one block of which is not what was written, and the store that still has its messages."""

    def __init__(self, path: Path) -> None:
        self.disk, self.url = path / "disk", (path / "tier").as_uri()
        self.count = 0
        self.put(600)
        log = next(found for found in sorted((path / "tier").rglob("orders/0/COMMIT_LOG/*")) if found.is_file())
        data = bytearray(log.read_bytes())
        assert len(data) > 2 * LOG_BLOCK_BYTES
        data[LOG_BLOCK_BYTES + 5000] ^= 0x40
        log.write_bytes(data)

    def put(self, count: int) -> None:
        with TieredStore.open(self.disk, tier=self.url, broker_name="broker-a", **SETTINGS) as store:
            for number in range(count):
                body = b'{"id": %d, "filled": "%s"}' % (self.count + number, b"x" * 2000)
                assert store.put(Message("orders", body, number % 2)).ok
            assert store.flush_to_tier(60)
        self.count += count

    def wanted(self) -> list[tuple[str, int, int]]:
        return sorted(("orders", number % 2, number // 2) for number in range(self.count))

    def repair(self) -> None:
        result = CliRunner().invoke(cli, ["tier", "repair", self.url, "--store", str(self.disk)])
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("body", [None, BodyFormat.of("json", "id bigint")], ids=["plain", "decoded"])
def test_damaged_messages_stay_open_in_every_run_and_are_added_once_after_a_repair(
    world: TableWorld, tmp_path: Path, body: BodyFormat | None
) -> None:
    history = DamagedTier(tmp_path / "history")

    def run(**more: Any) -> JobReport:
        return export(None, tier=history.url, body=body, max_bad=0, **{**world.to, **more})

    first = run(wave_files=1, file_bytes=100_000)
    damaged = int(first.done["damaged"])
    assert 100 < damaged < 200
    assert (first.done["messages"], first.done["bad"]) == (600 - damaged, 0)
    [problem] = first.problems
    assert f"{damaged} messages are damaged in the history" in problem
    assert f"its block of {LOG_BLOCK_BYTES} bytes at {LOG_BLOCK_BYTES} is not what was written" in problem
    assert "CRC" not in problem
    number = next_of(world)
    again = run()
    assert (again.done["messages"], again.done["damaged"]) == (0, damaged)
    assert [problem.split(", such as")[0] for problem in again.problems] == [problem.split(", such as")[0]]
    assert again.planned["messages"] == damaged
    assert next_of(world) == number  # Nothing was committed: there was nothing to add.
    history.put(40)
    later = run()
    assert (later.done["messages"], later.problems) == (40, again.problems)
    assert len(world.rows()) == 640 - damaged
    assert world.bad_rows() == []
    history.repair()
    repaired = run()
    assert (repaired.done["messages"], repaired.problems) == (damaged, [])
    assert world.rows() == history.wanted()
    assert (run().planned["messages"], run().problems) == (0, [])


def next_of(world: TableWorld) -> int:
    return open_table(**world.to).number()


def test_an_export_of_damaged_messages_exits_with_1_every_time(plain: TableWorld, tmp_path: Path) -> None:
    history = DamagedTier(tmp_path / "history")
    words = ["pipeline", "export", "--tier", history.url, "--to", plain.to["to"], "--max-bad", "0", "--master", "here"]
    for _ in range(2):
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 1, result.output
        assert "messages are damaged in the history" in result.output
        assert "schema" not in result.output
    history.repair()
    assert CliRunner().invoke(cli, words).exit_code == 0
    assert plain.rows() == history.wanted()


def test_clusters_with_one_broker_name_are_exported_one_by_one_so_that_ids_stay_unique(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/tier"
    for cluster in ("prod", "test"):
        with LocalStore.open(tmp_path / cluster, **SIZES) as store:
            store.put_many(Message("orders", cluster.encode(), 0) for _ in range(20))
        offload([f"{tmp_path / cluster}={cluster}/broker-a"], url, index="later")

    def run(*words: str) -> Result:
        source = ["pipeline", "export", "--master", "here", "--tier", url, "--topic", "orders"]
        return CliRunner().invoke(cli, [*source, "--to", f"parquet:{tmp_path}/lake", *words])

    both = run()
    assert both.exit_code == 1
    assert "of cluster 'prod' and of cluster 'test': rows of both would have the same recordId" in both.output
    assert run("--cluster", "prod").exit_code == 0
    bodies = [row.as_py() for path in (tmp_path / "lake").rglob("*.parquet") for row in pq.read_table(path)["body"]]
    assert bodies == [b"prod"] * 20
    other = run("--cluster", "test")
    assert other.exit_code == 1
    assert "--cluster), and keep the other in a query or table of its own" in other.output
    absent = run("--cluster", "dev")
    assert absent.exit_code == 1
    assert "there is no cluster 'dev' in the history; there are prod, test" in absent.output
