"""Every command of mqadmin 5.3.3 and 5.5.0 against our broker and the real one: the table of `docs/administration.md`.

`TIERMQ_WRITE_TABLE=1` writes the table as it is found.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.consuming import heartbeat
from interop.mqadmin import masked
from interop.mqadmin_commands import COMMANDS, LITE_TOPIC, NOT_RUN, TIMED_OUT, outcome
from interop.rocketmq import Unavailable, fetch
from interop.two_brokers import Side, World, send_alike, two_brokers
from tiermq.remoting.codes import RequestCode as Code

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("every-mqadmin-command"), pytest.mark.timeout(0)]

VERSIONS = ("5.3.3", "5.5.0")
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "administration.md"
BEGIN, END = "<!-- every command of mqadmin: begin -->\n", "<!-- every command of mqadmin: end -->\n"
UNIQUE = "7F0000010A1B2C3D0000000000000003"


@pytest.fixture(scope="module", params=VERSIONS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, World]]:
    try:
        distribution = fetch(request.param)
    except Unavailable as reason:
        pytest.skip(f"no real RocketMQ here: {reason}")
    with two_brokers(distribution, tmp_path_factory.mktemp("every-command")) as world:
        yield request.param, world


def test_each_command_works_or_says_why_not(found: tuple[str, World], tmp_path: Path) -> None:
    version, world = found
    prepare(tmp_path)
    ids: list[tuple[str, str]] = []
    outcomes: dict[str, str] = {}
    listed = world.ours.mqadmin.commands()
    assert listed.keys() <= {words[0] for words in COMMANDS} | NOT_RUN.keys(), "a command that the table does not have"
    for words in COMMANDS:
        if words[0] not in listed or (words in LITE_TOPIC and "getLiteTopicInfo" not in listed):
            continue
        if words[0] == "topicStatus":  # The topic and the groups are there: now messages, offsets and a client.
            ids = send_alike(world, "orders", 6)
        if ids:  # Again for each command: on a busy machine they take longer than the two minutes of an idle client.
            for side in (world.real, world.ours):
                consume(side)
        real, ours = (
            said(side, words, tmp_path, ids[3][place] if ids else "")
            for place, side in enumerate((world.real, world.ours))
        )
        outcomes[words[0]] = outcome(words[0], real, ours)
    outcomes |= {name: f"not run: {reason}" for name, reason in NOT_RUN.items()}
    if os.environ.get("TIERMQ_WRITE_TABLE"):
        write_table(version, outcomes)
    expected = table(version)
    assert expected.keys() == listed.keys()
    wrong = {name: (reported, outcomes[name]) for name, reported in expected.items() if outcomes[name] != reported}
    assert {name: each for name, each in wrong.items() if each != ("works", "same answer")} == {}


def prepare(home: Path) -> None:
    topic = {"readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "order": False, "topicFilterType": "SINGLE_TAG"}
    (home / "topics.json").write_text(json.dumps([{"topicName": f"list-{number}", **topic} for number in (1, 2)]))
    (home / "groups.json").write_text(json.dumps([{"groupName": name} for name in ("CH", "CI")]))
    (home / "other.conf").write_text("brokerName=other\n")


def consume(side: Side) -> None:
    beat = json.dumps(heartbeat("CG", "*", "client-1", topic="orders")).encode()
    assert side.ask(Code.HEART_BEAT, beat).code == 0
    side.ask(Code.UPDATE_CONSUMER_OFFSET, consumerGroup="CG", topic="orders", queueId=1, commitOffset=2)


def said(side: Side, words: tuple[str, ...], home: Path, message_id: str) -> str:
    reported = [word.format(address=side.address, home=home, id=message_id, unique=UNIQUE) for word in words]
    while TIMED_OUT in (printed := side.mqadmin.run(*reported)):
        pass
    return masked(printed)


ROW = re.compile(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", re.MULTILINE)


def table(version: str) -> dict[str, str]:
    """The document's table, of one version; commands that the version does not have are left out."""
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = ROW.findall(text[text.index(BEGIN) : text.index(END)])
    return {row[0]: row[1 + VERSIONS.index(version)] for row in rows if row[1 + VERSIONS.index(version)] != "–"}


def write_table(version: str, outcomes: dict[str, str]) -> None:
    others = {each: table(each) for each in VERSIONS}
    others[version] = outcomes
    names = sorted({name for each in others.values() for name in each})
    rows = [f"| `{name}` | {' | '.join(others[each].get(name, '–') for each in VERSIONS)} |\n" for name in names]
    text = DOCUMENT.read_text(encoding="utf-8")
    head = f"| command | {' | '.join(f'mqadmin {each}' for each in VERSIONS)} |\n|---|---|---|\n"
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    DOCUMENT.write_text(text[:begin] + head + "".join(rows) + text[end:], encoding="utf-8")
