"""One catalogue: every operation gives the same JSON, and refuses the same, over HTTP and in a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from console.console_world import Browser, console, orders_broker, place_of
from tiermq.cli.main import cli
from tiermq.console.catalogue import operations
from tiermq.console.web import pages
from tiermq.testing import LocalBroker

ANYBODY = "Basic eDp4"
HALF = "7F00000100002A9F0000000000000123"
ARGUMENTS: dict[str, dict[str, str]] = {
    "delayed.cancel": {"topic": "orders", "uniqueKey": "none-of-that-key"},
    "delayed.list": {},
    "dlq.list": {"group": "audit"},
    "dlq.resend": {"group": "audit"},
    "group.create": {"group": "made", "retries": "3"},
    "group.delete": {"group": "made"},
    "group.list": {"rows": "10"},
    "group.preview": {"group": "audit", "topic": "orders", "to": "first"},
    "group.reset": {"group": "audit", "topic": "orders", "to": "first"},
    "group.show": {"group": "audit"},
    "history.replay": {"topic": "orders", "to": "again", "begin": "1700000000000", "end": "1700000000001"},
    "history.show": {"topic": "orders", "at": "1700000000000"},
    "message.find": {"topic": "orders", "key": "order-7"},
    "message.resend": {"topic": "orders", "queue": "0", "offset": "999"},
    "message.show": {"topic": "orders", "queue": "1", "offset": "3"},
    "overview": {},
    "producer.list": {},
    "settings.change": {"name": "fileReservedTime", "value": "48"},
    "settings.show": {"search": "fileReserved"},
    "sql.end": {},
    "sql.estimate": {"query": "SELECT tags FROM orders"},
    "sql.run": {"query": "SELECT tags, count(*) AS n FROM orders GROUP BY ALL ORDER BY ALL"},
    "sql.running": {},
    "sql.spark": {"query": "SELECT tags FROM orders"},
    "tier.bill": {"sheet": "gcs-standard", "retentionDays": "30"},
    "tier.days": {"topic": "orders"},
    "tier.orphans": {"hours": "1"},
    "tier.segments": {"topic": "orders"},
    "tier.show": {},
    "tier.verify": {"topic": "orders"},
    "topic.alter": {"topic": "orders", "attributes": "reserve.time=24"},
    "topic.create": {"topic": "made", "queues": "2"},
    "topic.delete": {"topic": "made"},
    "topic.list": {"search": "ord"},
    "topic.map": {"topic": "orders"},
    "topic.show": {"topic": "orders"},
    "transaction.list": {},
    "transaction.show": {"id": HALF},
}
REFUSED = {"message.resend", "sql.end", "sql.spark", "transaction.show"}
"""With these arguments they are refused, with one text."""
MOVES = re.compile(
    r'"(nowMs|tookMs|atMs|modifiedMs|writtenMs|untilMs|renewals|sequence|putPerSecond|getPerSecond|putToday|'
    r"putLatencyP99Ms|lastSeenMs|bytesRead|messagesRead|smallObjects|diskRatio|oldestMs|logBytes|logTo|"
    r"dispatchBehindBytes|tierBehindMs|tablesTakenMs|groupsTakenMs|toMs|isHeld)"
    r'": ?("[^"]*"|[-0-9.e]+|null|true|false)'
)
"""Figures that go on between two calls."""
WORLD_KEYS = {"properties", "retention", "brokers", "settings", "bytesByKind", "counts", "attributes"}
"""Members whose own keys are names of things."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, LocalBroker, Browser]]:
    directory = tmp_path_factory.mktemp("catalogue")
    still = {"tiered_store_group_commit_timeout": 86_400_000}  # Nothing is uploaded between two calls.
    with orders_broker(directory, **still) as broker, console(place_of(directory, broker), allow_changes=True) as at:
        broker.create_topic("again", queues=2)
        at.ask(
            "POST", "/api/group.create", b'{"group": "audit"}', Content_Type="application/json", Authorization=ANYBODY
        )
        yield directory, broker, at


def in_a_terminal(world: tuple[Path, LocalBroker, Browser], *words: str) -> Result:
    directory, broker, _ = world
    places = ("--tier", f"file://{directory}/tier", "--store", str(directory / "store"), "-n", broker.name_server)
    return CliRunner().invoke(cli, [*words, *places])


def over_http(at: Browser, name: str, values: dict[str, str]) -> tuple[bool, Any]:
    if operations()[name].posts:
        body = json.dumps(values).encode()
        answer = at.ask("POST", f"/api/{name}", body, Content_Type="application/json", Authorization=ANYBODY)
        return answer.status == 200, answer.json
    from urllib.parse import urlencode

    answer = at.get(f"/api/{name}?{urlencode(values)}")
    return answer.status == 200, answer.json


def settled(found: dict[str, Any]) -> str:
    if "tierBehind" in found:  # A broker's tables reach the tier when they change.
        found = {**found, "tier": {**found["tier"], "objects": 0}}
    return MOVES.sub(r'"\1": 0', json.dumps(found, sort_keys=True))


def test_the_samples_are_all_operations() -> None:
    assert ARGUMENTS.keys() == operations().keys()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_operation_answers_a_terminal_as_it_answers_http(
    name: str, world: tuple[Path, LocalBroker, Browser]
) -> None:
    values = ARGUMENTS[name]
    if name in ("topic.delete", "group.delete"):
        made = over_http(world[2], name.replace("delete", "create"), ARGUMENTS[name.replace("delete", "create")])
        assert made[0], made[1]
    if name == "settings.change":  # The first change is answered with a remark.
        over_http(world[2], name, values)
    is_done, answer = over_http(world[2], name, values)
    answer.pop("verification", None)  # The last one of this console, which the terminal did not make.
    if name == "topic.delete":
        assert over_http(world[2], "topic.create", ARGUMENTS["topic.create"])[0]
    reported = in_a_terminal(world, "api", name, *(f"{key}={value}" for key, value in values.items()))
    assert is_done is (name not in REFUSED), answer
    if is_done:
        assert reported.exit_code == 0, reported.output
        printed = json.loads(reported.stdout)
        printed.pop("verification", None)
        assert settled(printed) == settled(answer)
    else:
        assert (reported.exit_code, answer["error"] in reported.stderr.replace("\n", " ")) == (1, True), reported.stderr
    assert in_one_case(answer) == []


def in_one_case(found: object, path: str = "") -> list[str]:
    """Members that are not in camelCase."""
    if isinstance(found, list):
        return [each for one in found[:3] for each in in_one_case(one, path)]
    if not isinstance(found, dict):
        return []
    bad = []
    for name, value in found.items():
        if path.rpartition(".")[2] not in WORLD_KEYS and not re.fullmatch(r"[a-z][a-zA-Z0-9]*", name):
            bad.append(f"{path}.{name}")
        bad += in_one_case(value, f"{path}.{name}")
    return bad


@pytest.mark.parametrize(
    "words",
    [
        ("topic.list", "nonsense=1"),
        ("topic.lst",),
        ("topic.list", "page=0"),
        ("message.find", "topic=orders", "begin=yesterday"),
        ("message.show", "topic=orders"),
    ],
)
def test_a_wrong_request_is_refused_with_the_same_text(
    words: tuple[str, ...], world: tuple[Path, LocalBroker, Browser]
) -> None:
    name, *values = words
    answer = world[2].get(f"/api/{name}?{'&'.join(values)}")
    reported = in_a_terminal(world, "api", *words)
    assert (answer.status, reported.exit_code) == (400, 1)
    assert answer.json["error"] in reported.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "name", "values"),
    [
        (("status",), "overview", {}),
        (("topic", "list"), "topic.list", {"rows": "1000"}),
        (("group", "list"), "group.list", {"rows": "1000"}),
    ],
)
def test_a_command_prints_what_its_operation_answers(
    words: tuple[str, ...], name: str, values: dict[str, str], world: tuple[Path, LocalBroker, Browser]
) -> None:
    reported = json.loads(in_a_terminal(world, *words, "--json").stdout)
    answer = over_http(world[2], name, values)[1]
    answer = {key: value for key, value in answer.items() if key not in ("page", "pages")}
    assert settled(reported) == settled(answer)


def test_the_list_of_operations_is_complete(world: tuple[Path, LocalBroker, Browser]) -> None:
    listed = in_a_terminal(world, "api").stdout
    assert [line.split()[0] for line in listed.splitlines()] == sorted(operations())
    assert "key (optional)" in in_a_terminal(world, "api", "message.find", "--list").stdout


def test_every_operation_is_behind_a_page_and_forms_send_its_parameters() -> None:
    """In a terminal `tiermq api` runs any of them, and /api any over HTTP: see above."""
    web = Path(pages.__file__).parent
    markup = "".join(each.read_text() for each in sorted((web / "templates").glob("*.html")))
    forms = dict(re.findall(r'action="/do/([\w.]+)"(.*?)</form>', markup, re.DOTALL))
    code = (web / "pages.py").read_text()
    for name, each in operations().items():
        if not each.changes:
            assert f'"{name}"' in code or name in forms, f"{name} is on no page"
            continue
        sent = set(re.findall(r'name="(\w+)"', forms[name])) | set(re.findall(r"\('([^)]*)'\)", forms[name]))
        known = {parameter.name for parameter in each.parameters}
        assert {word for text in sent for word in re.split(r"', '", text)} <= known, name
        required = {parameter.name for parameter in each.parameters if parameter.is_required}
        assert required <= {word for text in sent for word in re.split(r"', '", text)}, name
