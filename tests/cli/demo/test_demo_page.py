"""The page stands alone, says what was found, and says it as text."""

from __future__ import annotations

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cli.demo.demo_cases import account_of, timeline_of
from demo_files import PAGE, PICTURE, written
from servers.chromium import chromium
from servers.debian import Unavailable
from tiermq.cli.demo.account import Check
from tiermq.cli.demo.drawing import SERIES
from tiermq.cli.demo.engine import SQL
from tiermq.cli.demo.page import STYLE, TONES, page

PHONE = """<body style="margin:0"><iframe src="page.html" style="border:0;width:WIDTHpx;height:900px"></iframe>
<script>onload = () => {
  const inside = document.querySelector("iframe").contentDocument;
  const rights = [...inside.querySelectorAll(".ok, .bad")].map(each => each.getBoundingClientRect().right);
  document.body.innerHTML = `<p>${[inside.documentElement.scrollWidth, ...rights].join(" ")}</p>`;
}</script>"""


class Words(HTMLParser):
    """The texts of a page, and everything it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_needs_nothing_but_itself() -> None:
    timeline = timeline_of()
    text = page(account_of(timeline), timeline)
    words = Words(text)
    assert words.fetched == []
    assert "script" not in words.tags
    assert words.tags.count("svg") == 2
    assert not re.search(r"url\((?!#)|@import|//", re.sub(r"s3://\S*", "", text))


def test_the_page_reports_the_numbers() -> None:
    timeline = timeline_of()
    reported = " ".join(Words(page(account_of(timeline), timeline)).texts)
    for expected in ("1,000 messages went the whole way", "by SQL", "differs", "agrees", "abd", "50.00", SQL[:20]):
        assert expected in reported


def test_numbers_that_look_alike_and_differ_have_a_reason() -> None:
    timeline = timeline_of()
    account = account_of(timeline)
    account.checks.append(Check("what the killed broker left", 500, 0xAB, True))
    reported = " ".join(Words(page(account, timeline)).texts)
    assert "500 what the killed broker left: not all 1,000, because the others were sent later." in reported
    assert "Sent at 600/s after the restart, at 500/s before the kill" in reported
    assert "684 KiB of records are 100 MiB in the tier" in reported
    assert "100 MiB on the local disk" in reported
    assert "2 of 3 agree" in reported
    assert "999 by chance: not all" not in reported  # That one is wrong, and is said to differ.
    quiet = account_of(timeline, without_spark="no Java")
    quiet.checks = [Check("by offset", 1_000, 0xABC, True)]
    quiet.tier_bytes = quiet.local_bytes_before = round(quiet.messages * quiet.record_bytes)
    next(step for step in quiet.steps if step.name == "put").facts["messages_per_s"] = 600.0
    assert "Why some numbers differ" not in page(quiet, timeline)


@pytest.mark.interop
@pytest.mark.parametrize("width", [360, 500, 1_280])
def test_each_result_of_the_proof_is_on_the_screen_of_a_phone(tmp_path: Path, width: int) -> None:
    try:
        browser = chromium()
    except Unavailable as reason:
        pytest.skip(str(reason))
    timeline = timeline_of()
    account = account_of(timeline)
    account.checks.append(
        Check("over the wire by offset, after the broker's directory was deleted", 300_000, 1 << 40, True)
    )
    # Headless Chromium has no window below 500 pixels, so the page is in a frame.
    (tmp_path / "page.html").write_text(page(account, timeline), encoding="utf-8")
    (tmp_path / "phone.html").write_text(PHONE.replace("WIDTH", str(width)), encoding="utf-8")
    done = subprocess.run(
        [
            browser.program, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile",
            "--allow-file-access-from-files", "--virtual-time-budget=2000", "--dump-dom", f"{tmp_path}/phone.html",
        ],
        capture_output=True, text=True, check=True, env=browser.environment,
    )  # fmt: skip
    found = re.search(r"<p>(.*)</p>", done.stdout)
    assert found is not None
    page_width, *results = map(float, found[1].split())
    assert page_width <= width  # Nothing but the pictures is wider than the screen.
    assert len(results) == len(account.checks)
    assert max(results) <= page_width


def test_numbers_of_the_published_page_agree_or_it_says_why_not() -> None:
    page_text, picture = PAGE.read_text(encoding="utf-8"), PICTURE.read_text(encoding="utf-8")
    assert Words(page_text).fetched == []
    sent = re.search(r"<h1>([\d,]+) messages went the whole way", page_text)
    assert sent is not None
    proof = page_text[page_text.index("<h2>The proof") :]
    counts = re.findall(r"<td>([^<]*)<td class=n>([\d,]+)<td class=n><code>(\w+)</code><td><span class=(\w+)>", proof)
    assert len(counts) >= 5
    assert {result for _, _, _, result in counts} == {"ok"}
    assert f"{len(counts)} of {len(counts)} agree" in page_text
    whole = {checksum for _, count, checksum, _ in counts if count == sent[1]}
    assert len(whole) == 1
    for by, count, _, _ in counts:
        assert count == sent[1] or f"{count} {by}: not all {sent[1]}" in " ".join(Words(proof).texts)
    # The picture of the README is of the same run, and no directory of a machine is in either.
    assert written(page_text) == (page_text, picture)


def test_what_others_named_is_text_and_no_markup() -> None:
    timeline = timeline_of()
    text = page(account_of(timeline), timeline)
    assert "<open>" not in text
    assert "<here>" not in text
    assert {"<open>", "killed <here>"} <= set(Words(text).texts)
    assert "a&amp;b" in text


def test_without_spark_there_is_no_word_of_sql() -> None:
    timeline = timeline_of()
    reported = " ".join(Words(page(account_of(timeline, without_spark="no Java"), timeline)).texts)
    assert "copied to the tier by a job" in reported
    assert "by SQL" not in reported
    assert "Restored" in reported


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_series_has_its_tones() -> None:
    assert set(TONES) == set(SERIES)
    for name in SERIES:
        assert f".area.{name}" in STYLE
        assert STYLE.count(f"--{name}:") == 2


@pytest.mark.parametrize("name", TONES)
def test_a_tone_stands_out_from_its_background(name: str) -> None:
    light, dark = TONES[name]
    assert contrast(light, "#ffffff") >= 2.7
    assert contrast(dark, "#191c22") >= 4.5


def test_both_screens_and_those_who_want_no_movement_are_served() -> None:
    assert "prefers-color-scheme:dark" in STYLE
    assert "prefers-reduced-motion" in STYLE
    assert STYLE.count("{") == STYLE.count("}")
