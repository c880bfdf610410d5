"""The picture of the way: what went from where to where."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from cli.demo_cases import account_of, timeline_of
from tiermq.cli.demo_flow import BOX_WIDTH, BOXES, WIDTH, arrows_of, boxes_of, flow, from_to, left_of


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
