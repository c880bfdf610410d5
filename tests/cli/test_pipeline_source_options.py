"""Which messages a command is about, from words to arguments."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tiermq.cli.pipeline_source_options import offsets_of, queue_ranges, source_arguments, stopped_by_signals
from tiermq.errors import BadConfig
from tiermq.spark.jobs.job_report import JobReport


def test_only_what_was_said_becomes_an_argument() -> None:
    assert source_arguments(tier="file:///t", stores=(), topics=()) == {"tier": "file:///t"}
    found = source_arguments(tier=None, stores=("a=c/b1", "b=b2"), topics=("x",), queues=(1,), offsets="1:")
    assert found == {
        "store": ["a", "b"], "brokerName": ["b1", "b2"], "topic": ["x"], "queues": [1], "offsets": (1, None),
    }  # fmt: skip


def test_a_place_must_be_said_and_brokers_of_all_stores_or_of_none() -> None:
    with pytest.raises(BadConfig, match="where messages lie"):
        source_arguments(tier=None, stores=(), topics=())
    with pytest.raises(BadConfig, match="of every --store"):
        source_arguments(tier=None, stores=("a=b", "c"), topics=())


@pytest.mark.parametrize(("text", "pair"), [("1:2", (1, 2)), (":2", (None, 2)), ("7:", (7, None)), (None, None)])
def test_offsets_are_two_numbers_with_a_colon(text: str | None, pair: object) -> None:
    assert offsets_of(text) == pair


@pytest.mark.parametrize("text", ["", ":", "5", "a:b", "-1:3", "9:3"])
def test_other_offsets_are_refused(text: str) -> None:
    with pytest.raises(BadConfig, match="FROM:TO"):
        offsets_of(text)


def test_the_first_signal_asks_to_stop_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop = threading.Event()
    with stopped_by_signals(stop, "wave"):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(10)
    assert signal.getsignal(signal.SIGTERM) == before


def test_ranges_of_queues_are_lines() -> None:
    rows = [{"queue": "c/b/orders/0", "ranges": [[0, 5], [9, 12]]}]
    assert list(queue_ranges(JobReport("job", "here", details={"queues": rows}))) == ["c/b/orders/0: 0..5, 9..12"]
    assert list(queue_ranges(JobReport("job", "here"))) == []
