"""What cannot be done, for every job: one sentence, an exit code, and nothing written where history or tables are."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from pipeline.job_world import HOT_SIZES, tiered
from tier.tier_world import BROKER, CLUSTER
from tiermq import Message
from tiermq.cli.main import cli
from tiermq.store.local_store import LocalStore
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.metadata.document import seal_document

TENDING = ("compact", "expire", "verify", "reindex")
READING = ("export", "replay", "sql")
HERE = ("--master", "here")


class Place:
    """A store and its tier, and words for every job over them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tier, self.store = tiered(path, 12)
        self.hot = path / "hot"

    def words(self, job: str, tier: str | None = None) -> list[str]:
        url = tier or self.tier
        if job == "offload":
            return [job, "--store", self.store, "--tier", url, *HERE]
        if job in TENDING:
            return [job, url, *HERE]
        own = {
            "export": ["--to", f"parquet:{self.path}/lake", *HERE],
            "replay": ["--into", f"{self.path}/into", "--record", f"{self.path}/record", *HERE],
            "sql": ["select body from messages", "--dry-run"],
        }
        return [job, "--tier", url, *own[job]]

    def contents(self) -> dict[str, tuple[int, int]]:
        """Everything but the lease, which a job may take and give back, and files that are only opened."""
        passed_over = ("lease.tiermq.json", "tieredStoreMetadata.db", "tier.lock", "tier.machine")
        return {
            str(file): (file.stat().st_size, file.stat().st_mtime_ns)
            for file in self.path.rglob("*")
            if file.is_file() and not any(name in file.name for name in passed_over)
        }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["pipeline", *words])


def refused(place: Place, words: list[str], reported: str) -> None:
    before = place.contents()
    found = run(*words)
    assert found.exit_code != 0, found.output
    assert reported in found.output
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    assert found.output.strip().count("\n") == 0, found.output
    assert place.contents() == before


@pytest.mark.parametrize("job", [*READING, "offload", "verify", "reindex"])
def test_a_topic_that_is_not_there(place: Place, job: str) -> None:
    reported = "expected history of */*/ordes" if job == "verify" else "there is no topic 'ordes'"
    refused(place, [*place.words(job), "--topic", "ordes"], reported)


@pytest.mark.parametrize("job", TENDING)
def test_a_broker_that_is_not_there(place: Place, job: str) -> None:
    refused(place, [*place.words(job), "--broker", "nobody"], "found none")


@pytest.mark.parametrize("job", [*TENDING, *READING])
def test_a_tier_that_is_not_there(place: Place, job: str) -> None:
    refused(place, place.words(job, f"file://{place.path}/nowhere"), "found none")


@pytest.mark.parametrize("job", [*TENDING, *READING, "offload"])
def test_a_url_that_is_none(place: Place, job: str) -> None:
    refused(place, place.words(job, "ftp://host/dir"), "expected a tier URL that begins with file://")


@pytest.mark.parametrize("job", READING)
def test_times_that_run_backwards_or_are_none(place: Place, job: str) -> None:
    backwards = ["--since", "2026-02-01", "--until", "2026-01-01"]
    refused(place, [*place.words(job), *backwards], "expected endingTimestamp at or after startingTimestamp")
    refused(place, [*place.words(job), "--since", "yesterday"], "found 'yesterday'")
    refused(place, [*place.words(job), "--offsets", "9:3"], "with FROM <= TO")


@pytest.mark.parametrize("job", ["compact", "expire", "reindex", "offload"])
def test_a_broker_that_somebody_else_holds(place: Place, job: str) -> None:
    BrokerLease(open_driver(place.tier), CLUSTER, BROKER, "box:/other").acquire()
    refused(place, place.words(job), "box:/other")


@pytest.mark.parametrize("job", ["compact", "expire", "reindex", *READING])
@pytest.mark.parametrize("with_store", [False, True])
def test_a_tier_that_a_newer_program_writes(place: Place, job: str, with_store: bool) -> None:
    make_newer(place)
    more = ["--store", place.store] if with_store and job in TENDING else []
    refused(place, [*place.words(job), *more], "expected version 2 or older, found 99")


def test_an_offload_leaves_out_a_queue_that_a_newer_program_writes(place: Place) -> None:
    with LocalStore.open(place.hot, background=False, **HOT_SIZES) as store:
        store.put(Message("orders", b"one more", 0))
        store.dispatch_now()
    make_newer(place)
    found = run(*place.words("offload"))
    assert (found.exit_code, "found 99" in found.output) == (1, True), found.output


def test_a_verification_reports_what_a_newer_program_writes_and_reads_the_rest(place: Place) -> None:
    make_newer(place)
    for more in ([], ["--repair"]):
        before = place.contents()
        found = run(*place.words("verify"), *more)
        assert (found.exit_code, "found 99" in found.output, "12 records" in found.output) == (1, True, True)
        assert place.contents() == before


@pytest.mark.parametrize(
    ("more", "reported"),
    [
        (["--body", "json", "--schema", "id bigit"], "at 'bigit'"),
        (["--body", "avro", "--schema", "no.avsc"], "expected an Avro schema"),
        (["--body", "protobuf", "--schema", "no.pb", "--message", "m"], "no file 'no.pb'"),
        (["--columns", "topc"], "did you mean 'topic'"),
        (["--to", "orc:/x"], "expected a table such as"),
        (["--to", "iceberg:a.b"], "and a catalogue"),
        (["--to", "iceberg:a.b", "--catalog", "no-such-catalogue"], "expected sqlite:////file.db"),
    ],
)
def test_a_table_that_cannot_be_made(place: Place, more: list[str], reported: str) -> None:
    refused(place, [*place.words("export"), *more], reported)


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
def test_a_place_where_nothing_can_be_made(place: Place, kind: str) -> None:
    (place.path / "file").write_text("in the way")
    to = ["--to", f"{kind}:{place.path}/file/lake"]
    if kind == "iceberg":
        to = ["--to", "iceberg:a.b", "--catalog", f"sqlite:///{place.path}/file/c.db"]
    refused(place, [*place.words("export"), *to], str(place.path))


@pytest.mark.parametrize("name", ["--into", "--record"])
def test_a_replay_to_where_nothing_can_be_written(tmp_path: Path, name: str) -> None:
    place = Place(tmp_path / "place")
    (tmp_path / "file").write_text("in the way")
    found = run(*place.words("replay"), name, f"{tmp_path}/file/x")
    assert (found.exit_code, f"{tmp_path}/file" in found.output, "Traceback" in found.output) == (1, True, False)


@pytest.mark.parametrize("job", ["compact", "verify", "reindex", "export", "replay", "offload"])
def test_a_master_that_is_none_or_does_not_answer(place: Place, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A test before this one may have left its session to others: a session that runs is used, whatever master is named.
    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda _cls: None))
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # Not listening: whoever connects is refused.
        silent = f"spark://127.0.0.1:{bound.getsockname()[1]}"
        refused(place, [*place.words(job), "--master", silent], "expected a Spark that answers, found none")
    refused(place, [*place.words(job), "--master", "locall[2]"], "found 'locall[2]'")


def make_newer(place: Place) -> None:
    path = next((place.path / "cold").rglob("orders/0/manifest.tiermq.json"))
    path.write_bytes(seal_document(json.loads(path.read_bytes())["body"], 99))
