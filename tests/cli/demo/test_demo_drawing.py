"""The demo's pictures."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.demo.demo_cases import account_of, timeline_of
from tiermq.cli.demo.account import Step, rates
from tiermq.cli.demo.drawing import (
    BOX_WIDTH,
    BOXES,
    LABEL_STEP,
    SERIES,
    WIDTH,
    arrows_of,
    boxes_of,
    ceiling,
    chart,
    flow,
    from_to,
    label_places,
    left_of,
    tick_s,
)


def test_every_step_and_every_series_is_drawn() -> None:
    timeline = timeline_of()
    svg = chart(timeline.steps, rates(timeline, 0.1, 700.0), 0.1, timeline.samples, "6 files <evicted>")
    drawn = ET.fromstring(svg)
    texts = ["".join(each.itertext()) for each in drawn.iter("text")]
    assert [text for text in texts if text.isdigit() and text != "0"] == [str(each) for each in range(1, 10)]
    assert "6 files <evicted>" in texts
    assert {"local disk", "tier", "10 MiB", "90 MiB"} <= set(texts)
    classes = {each.get("class") for each in drawn.iter("path")}
    assert {f"area {name}" for name in SERIES} <= classes


def test_nothing_is_drawn_outside_the_picture() -> None:
    timeline = timeline_of()
    svg = chart(timeline.steps, rates(timeline, 0.5, 700.0), 0.5, timeline.samples, "")
    places = [float(each) for each in re.findall(r"[MH]([\d.-]+)", svg)]
    assert min(places) >= 0
    assert max(places) <= WIDTH


def test_a_demo_without_a_single_sample_has_a_picture() -> None:
    assert ET.fromstring(chart([], {}, 0.1, [], "nothing")) is not None


@given(st.floats(1.0, 1e15))
def test_the_end_of_an_axis_is_above_the_value_and_not_far(value: float) -> None:
    assert value < ceiling(value) <= max(value * 2.5, 4.0)


@pytest.mark.parametrize(("end_s", "tick"), [(0.5, 0.1), (6.1, 1.0), (44.0, 5.0), (61.0, 10.0), (3_000.0, 500.0)])
def test_the_time_axis_has_few_and_round_marks(end_s: float, tick: float) -> None:
    assert tick_s(end_s) == pytest.approx(tick)


@given(st.lists(st.floats(60.0, 1_050.0), min_size=1, max_size=12))
def test_numbers_of_steps_never_touch_and_stay_inside(centres: list[float]) -> None:
    places = label_places(sorted(centres), 74.0, 1_034.0)
    assert all(after - before >= LABEL_STEP - 1e-6 for before, after in itertools.pairwise(places))
    assert min(places) >= 74.0 - 1e-6
    assert max(places) <= 1_034.0 + 1e-6


def test_a_title_stands_beside_its_number_only_where_there_is_room() -> None:
    steps = [Step("a", "Put, and kill", 0.0, 5.0), Step("b", "Evict", 5.0, 5.2), Step("c", "Read", 5.2, 10.0)]
    picture = chart(steps, {}, 0.1, [], "")
    assert ">Put, and kill</text>" in picture
    assert ">Read</text>" in picture
    crowded = [Step("a", "Put, and kill", 0.0, 0.2), Step("b", "Evict", 0.2, 0.4), Step("c", "Read", 0.4, 10.0)]
    picture = chart(crowded, {}, 0.1, [], "")
    assert ">Put, and kill</text>" not in picture
    assert "1. Put, and kill" in picture, "a hand over the band still says it"


def texts_of(svg: str) -> list[str]:
    return ["".join(each.itertext()) for each in ET.fromstring(svg).iter("text")]


def test_every_place_and_every_arrow_has_its_numbers() -> None:
    texts = texts_of(flow(account_of(timeline_of())))
    assert [text for text in texts if text == "1,000"] == ["1,000"] * 5
    assert {"Producers", "Broker", "Consumer", "Tier", "Spark", "Table"} <= set(texts)
    assert {"100 → 10 MiB", "6 files evicted", "50 MiB/s", "1 Parquet file", "s3 · 8 queues"} <= set(texts)
    assert any("kill -9 after 480" in text for text in texts)
    assert any("serving from the tier in 100 ms" in text for text in texts)


def test_without_spark_its_half_is_shown_as_absent() -> None:
    account = account_of(timeline_of(), without_spark="no Java")
    assert [box.absent for box in boxes_of(account)] == [False, False, False, True, True]
    assert [arrow.absent for arrow in arrows_of(account)] == [False, False, True, True]
    assert texts_of(flow(account)).count("1,000") == 3


def test_a_demo_that_was_not_restored_has_no_way_back() -> None:
    account = account_of(timeline_of())
    account.steps = [step for step in account.steps if step.name != "restore"]
    assert not any("serving from the tier" in text for text in texts_of(flow(account)))


def test_the_boxes_fill_the_picture() -> None:
    assert left_of(BOXES - 1) + BOX_WIDTH == WIDTH - 1


def test_two_sizes_share_a_unit_when_they_have_the_same() -> None:
    assert from_to("1.2 GiB", "48 MiB") == "1.2 GiB → 48 MiB"
    assert from_to("224 MiB", "47.7 MiB") == "224 → 47.7 MiB"
