"""People at the console in Chromium: what they came for, and with how many clicks; keyboard, contrast, phone.

Chromium is the machine's, or fetched (`servers.chromium`); where neither can be, the tests are skipped with the reason.
With TIERMQ_SCREENSHOTS=DIR the pictures of the documents are made.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from console.shop import send_order, shop
from console.web_driver import DESKTOP, PHONE, Person, person
from servers.chromium import chromium
from servers.debian import Unavailable
from tiermq.testing import LocalBroker

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("chromium")]
TAB, ENTER, LEFT = "\ue004", "\ue007", "\ue012"
PATHS = (
    "/", "/topics", "/topics/orders", "/topics/orders/queues/1?offset=3", "/groups",
    "/groups/audit?topic=orders&to=last",
    "/messages?topic=orders", "/message?topic=orders&queue=2&offset=10", "/waiting?group=audit", "/history",
    "/history?topic=orders&at=1d", "/tier", "/tier/days?topic=orders", "/tier/segments?topic=orders", "/tier/orphans",
    "/sql?query=SELECT+tags,count(*)+FROM+orders+GROUP+BY+ALL", "/settings?search=tiered", "/api",
    "/topics/nothing-of-that-name",
)  # fmt: skip
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "console.md"
World = tuple[LocalBroker, Person]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    try:
        browser = chromium()
    except Unavailable as reason:
        pytest.skip(str(reason))
    # Pictures show where things are: not where this machine keeps its temporary files.
    directory = tmp_path_factory.mktemp("shop")
    if "TIERMQ_SCREENSHOTS" in os.environ:
        directory = Path("/tmp/shop")
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
    with shop(directory, allow_changes=True) as (broker, url), person(browser, url, directory) as someone:
        yield broker, someone


@pytest.fixture
def someone(world: World) -> Person:
    """At the overview, with no clicks so far."""
    world[1].size(*DESKTOP)
    world[1].scheme("light")
    world[1].open("/")
    world[1].clicks = 0
    world[1].complaints()
    return world[1]


# The tasks. Each begins at the overview; the name is the row of the table in docs/console.md.

Task = Callable[[Person, LocalBroker], None]
TASKS: dict[str, Task] = {}


def task(question: str) -> Callable[[Task], Task]:
    def registered(do: Task) -> Task:
        TASKS[question] = do
        return do

    return registered


@task("does anything need attention?")
def _(at: Person, _broker: LocalBroker) -> None:
    at.see("1 group has dead letters")


@task("how much is in the tier?")
def _(at: Person, _broker: LocalBroker) -> None:
    at.see("In the tier", "Not in the tier yet")
    assert re.search(r"In the tier\s+[\d.]+ kB\s+[1-9]\d* objects", at.text()), at.text()


@task("find order 42 of last year")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Messages")
    at.type("Topic", "orders")
    at.type("Key", "order-42")
    at.button("Find")
    at.link("2:10")
    at.see('"order": 42', "the tier")


@task("which bytes has it, field by field?")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Topics")
    at.link("orders")
    at.click("table a", "2")
    at.link("2:0")
    at.see("Bytes of the record", "born_timestamp_ms", "properties_length")


@task("show a body in hex")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Messages")
    at.type("Topic", "orders")
    at.button("Find")
    at.click("tbody a")
    at.click("label", "Hex")
    at.see("00000000  7b 22 6f 72 64 65 72")


@task("follow new messages with a filter")
def _(at: Person, broker: LocalBroker) -> None:
    at.link("Messages")
    at.type("Topic", "orders")
    at.type("Body contains", "4711")
    at.button("Find")
    at.button("Follow new messages")
    at.see("following")
    for number in (4710, 4711):
        send_order(broker, number)
    at.see('"order": 4711')
    assert '"order": 4710' not in at.text()


@task("where are the messages of a topic?")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Topics")
    at.link("orders")
    at.see("Hot and cold", "in the tier and still on the local disk")
    assert at.run("return document.querySelectorAll('svg.map rect.where').length") >= 4


@task("what is in that range of the map?")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Topics")
    at.link("orders")
    at.click("svg.map a")
    at.see("Queue 0", "Segments in the tier", '"order": 0')


@task("why does group audit lag?")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Groups")
    at.link("audit")
    at.see("No member is connected: nothing is consumed", "% of it is in queue 3 of orders")


@task("what would a reset skip and repeat?")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Groups")
    at.link("audit")
    at.type("To", "1h")
    at.button("Preview")
    at.see("It would skip", "and repeat")


@task("reset the offsets of a group")
def _(at: Person, broker: LocalBroker) -> None:
    at.link("Groups")
    at.link("mail")
    at.type("To", "first")
    at.button("Preview")
    at.button("Reset the offsets", agrees=True)
    at.see("Done", "group.reset")
    assert broker.committed_offset("mail", "payments", 0) == 0


@task("what will this topic cost?")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Tier")
    at.see("The bill", "A month")
    assert re.search(r"^orders\s.*\$ 0\.0\d*[1-9]", at.text(), re.MULTILINE), at.text()


@task("what does each day of it cost?")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Tier")
    at.link("orders")
    at.see("What each day of orders costs", "Storage a month")


@task("what would ten years and objects of 256 MiB cost?")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Tier")
    at.type("What if kept for days", "3650")
    at.type("What if objects of MiB", "256")
    at.button("Calculate")
    at.wait_for(lambda: "retentionDays=3650" in at.at(), "the page that was calculated")
    [prices] = [line for line in re.findall(r"^orders\s.*$", at.text(), re.MULTILINE) if line.count("$") > 2]
    now, then = re.findall(r"\$ ([\d.]+)", prices)[-2:]
    assert float(then) > float(now) > 0, "ten years of a year's messages cost more"


@task("who may write the tier, and is it verified?")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Tier")
    at.see("Leases", "Epoch", "Verified", "Verify now")
    assert re.search(r"broker-a\s+\S+.*\s[1-9]\d*\s", at.text()), at.text()


@task("verify it now")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Tier")
    at.button("Verify now", agrees=True)
    at.see("Done", "tier.verify", '"clean": true')


@task("what did groups look like yesterday?")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Time travel")
    at.link("orders")
    at.click("[data-travel]")  # The middle of the slider: half a year ago.
    at.see("Messages by then", "200", "Replay from here")


@task("replay from then into another topic")
def _(at: Person, broker: LocalBroker) -> None:
    at.link("Time travel")
    at.link("orders")
    at.click("[data-travel]")
    at.see("Messages by then")
    at.type("Into the topic", "returns")
    at.button("Replay", agrees=True)
    at.see("Done", '"sent": 7')
    assert len(broker.messages("returns")) >= 75


@task("which dead letters has a group?")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Waiting")
    at.type("Group", "audit")
    at.button("Show")
    at.see('"order": 12', '"order": 20')


@task("send them again")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Waiting")
    at.type("Group", "audit")
    at.button("Show")
    at.button("Send these again", agrees=True)
    at.see("Done", '"sent": [')


@task("cancel a timer")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Waiting")
    at.see("7F00ABCD")
    at.button("Cancel", agrees=True)
    at.see("Done", "delayed.cancel", '"uniqueKey": "7F00ABCD"')


@task("which transactions are open?")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Waiting")
    at.see("Open transactions", "ID-half", "payments-tx")


@task("count messages by tag, hot and cold")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("SQL")
    at.run("document.getElementById('query').value = 'SELECT tags, count(*) FROM orders GROUP BY ALL'")
    at.button("Run")
    at.see("open", "paid", "messages, ")


@task("what would a query read?")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("SQL")
    at.button("Estimate")
    at.see("It would read at most", "requests to the tier")


@task("which value has a setting?")
def _(at: Person, _broker: LocalBroker) -> None:
    at.link("Settings")
    at.type("Search", "fileReservedTime")
    at.button("Show")
    at.see("fileReservedTime", "72")


@task("create a topic")
def _(at: Person, broker: LocalBroker) -> None:
    at.link("Topics")
    at.type("Name", "refunds")
    at.button("Create")
    at.see("Done", "refunds")
    assert broker.broker.parts.topics.get("refunds") is not None


def clicks_in_the_document() -> dict[str, int]:
    return {found[1]: int(found[2]) for found in re.finditer(r"^\| (.+?) \| (\d) \|$", DOCUMENT.read_text(), re.M)}


@pytest.mark.parametrize("question", TASKS)
def test_a_person_gets_it_done_with_so_many_clicks(question: str, someone: Person, world: World) -> None:
    TASKS[question](someone, world[0])
    assert someone.complaints() == []
    assert someone.clicks == clicks_in_the_document()[question]


def test_the_document_lists_every_task() -> None:
    assert len(TASKS) >= 20
    assert list(clicks_in_the_document()) == list(TASKS)


# Every page


@pytest.mark.parametrize("path", PATHS)
def test_a_page_obeys_its_policy_and_fits_a_phone_in_light_and_dark(path: str, someone: Person) -> None:
    assert importlib.util.find_spec("axe_core_python"), "expected axe's rules: pip install axe-core-python"
    found = importlib.util.find_spec("axe_core_python")
    assert found is not None
    assert found.origin is not None
    rules = (Path(found.origin).parent / "axe.min.js").read_text()
    problems = []
    for width, height in (DESKTOP, PHONE):
        for scheme in ("light", "dark"):
            someone.size(width, height)
            someone.scheme(scheme)
            someone.open(path)
            someone.run(rules)
            script = "const done = arguments[arguments.length - 1]; axe.run().then(r => done(r.violations))"
            for each in someone.ask("POST", "/execute/async", {"script": script, "args": []}):
                where = [node["html"][:160] for node in each["nodes"][:3]]
                problems.append(f"{scheme} {width}: {each['id']}: {each['help']}: {where}")
            room = someone.run("return [document.documentElement.scrollWidth, window.innerWidth]")
            if room[0] > room[1]:
                problems.append(f"{scheme} {width}: the page is {room[0]} wide")
    reported = [each for each in someone.complaints() if "status of 40" not in each]
    assert problems + reported == []


def test_the_keyboard_reaches_everything_and_shows_where_it_is(someone: Person) -> None:
    someone.open("/topics")
    someone.press(TAB)
    assert someone.run("return document.activeElement.textContent") == "Skip to the content"
    someone.press(ENTER)
    assert someone.at().endswith("#content")
    someone.open("/topics")
    wanted = set(someone.run("return [...document.querySelectorAll('a,button,input,select')].map((e, i) => i)"))
    script = (
        "const all = [...document.querySelectorAll('a,button,input,select')];"
        "return [all.filter(e => e.type !== 'hidden' && e.getClientRects().length).length, all.length]"
    )
    visible, _ = someone.run(script)
    reached = set()
    for _ in range(len(wanted) + 2):
        someone.press(TAB)
        index, outline = someone.run(
            "const e = document.activeElement, all = [...document.querySelectorAll('a,button,input,select')];"
            "return [all.indexOf(e), getComputedStyle(e).outlineStyle]"
        )
        if index >= 0:
            reached.add(index)
            assert outline != "none", f"element {index} does not show that it has the focus"
    assert len(reached) >= visible
    someone.press("/")
    someone.run("document.activeElement.blur()")
    someone.press("/")
    assert someone.run("return document.activeElement.type") == "search"
    someone.open("/history?topic=orders&at=1d")
    before = someone.at()
    assert someone.run("return document.activeElement.id") == "at", "arrow keys travel at once"
    someone.press(LEFT)
    someone.wait_for(lambda: someone.at() != before, "another time after an arrow key")


PICTURES = {
    "overview": "/",
    "topic": "/topics/orders",
    "message": "/message?topic=orders&queue=2&offset=10",
    "group": "/groups/audit?topic=orders&to=last",
    "history": "/history?topic=orders&at=30d",
    "tier": "/tier",
    "sql": "/sql?query=SELECT+tags,tier,count(*)+AS+messages+FROM+orders+GROUP+BY+ALL",
    "waiting": "/waiting?group=audit",
    "days": "/tier/days?topic=orders",
}


@pytest.mark.skipif("TIERMQ_SCREENSHOTS" not in os.environ, reason="pictures are made with TIERMQ_SCREENSHOTS=DIR")
@pytest.mark.parametrize("name", PICTURES)
def test_pictures_for_the_documents(name: str, someone: Person) -> None:
    directory = Path(os.environ["TIERMQ_SCREENSHOTS"])
    wide = (1280, 1000)
    for suffix, size, scheme in (("", wide, "light"), ("-dark", wide, "dark"), ("-phone", PHONE, "light")):
        someone.size(*size)
        someone.scheme(scheme)
        someone.open(PICTURES[name])
        someone.photograph(directory / f"{name}{suffix}.png")
