"""The soak in small form, and that its checks can fail."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.brokers import running, send_command
from campaign.soak.later import Later
from campaign.soak.part import PARTS, paced, soak
from campaign.soak.streams import Caller, Stream, Tally, body_of
from campaign.soak.watch import Sample, growth, look
from tiermq.broker.broker import Broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running(tmp_path / "store") as made:
        yield made


def sent(broker: Broker, *bodies: bytes, topic: str = "T") -> None:
    caller = Caller(broker.port)
    for body in bodies:
        answer = caller.ask(send_command(topic, body))
        assert answer is not None
        assert answer.code == 0
    caller.close()


@pytest.mark.skipif(bool(PARTS[0].missing()), reason=PARTS[0].missing() or "it can run")
def test_some_seconds_of_mixed_load_keep_every_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("campaign.soak.later.AHEAD_MS", (1_100, 2_000))
    outcome = soak(1, tmp_path, seconds=1.5, per_second=20.0, tiered_store_group_commit_timeout=200)
    assert outcome.findings == []
    assert outcome.counts["acknowledged"] == outcome.counts["read_hot"] > 0
    assert outcome.counts["bucket_records"] >= outcome.counts["acknowledged"]
    assert outcome.counts["delayed_sent"] == outcome.counts["delayed_delivered"]


def test_a_stream_that_lacks_a_number_is_noticed(broker: Broker) -> None:
    sent(broker, body_of(0), body_of(1), body_of(3))
    with pytest.raises(AssertionError, match="expected number 2 at 2, found 3"):
        Stream("T", 0, broker.port, Tally()).follow("readers", lambda number: number >= 4, "read")


def test_a_number_that_comes_again_right_away_is_what_a_lost_answer_does(broker: Broker) -> None:
    sent(broker, body_of(0), body_of(0), body_of(1))
    tally = Tally()
    Stream("T", 0, broker.port, tally).follow("readers", lambda number: number >= 2, "read")
    assert tally.counts["read"] == 3


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda later: later.never.add("m"), "was rolled back, and came"),
        (lambda later: later.waiting.update(m=2**60), "early"),
        (lambda later: None, "is not waited for"),
    ],
)
def test_a_message_that_should_not_come_is_noticed(broker: Broker, prepare: object, words: str) -> None:
    later = Later(broker.port, Tally(), random.Random(1))
    prepare(later)  # type: ignore[operator]
    sent(broker, b"m", topic="Later")
    with pytest.raises(AssertionError, match=words):
        later.follow(lambda: bool(later.tally.counts))


def test_growth_is_reported_and_what_is_flat_is_not() -> None:
    flat = [Sample(60.0 + number % 3, 50.0, 20.0) for number in range(900)]
    assert growth(flat) == []
    leaking = [Sample(60.0 + number / 10, 50.0 + number / 20, 20.0) for number in range(900)]
    assert [text.split()[0] for text in growth(leaking)] == ["memory_mb", "open_files"]
    assert growth(leaking[:100]) == []  # Too short to tell.


def test_a_look_at_a_process_finds_what_it_holds(tmp_path: Path) -> None:
    before = look(os.getpid())
    with (tmp_path / "one").open("w"), (tmp_path / "two").open("w"):
        assert look(os.getpid()).open_files >= before.open_files + 2
    assert before.memory_mb > 1
    assert before.threads >= 1


def test_pace_ends_with_its_event() -> None:
    ending = threading.Event()
    pace = paced(1_000_000.0, ending)
    assert pace()
    ending.set()
    assert not pace()
