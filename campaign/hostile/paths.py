"""Names and addresses that would lead out of a directory: none does, wherever a name becomes a path."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from broker.brokers import SMALL, broker_config, send_command
from campaign.part import Finding, Outcome
from tiermq.broker.broker import Broker
from tiermq.errors import IllegalMessage, RemotingError, TierError
from tiermq.message.topic_name import check_group, check_topic
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.names import QueueKey, SegmentType

PIECES = ("..", ".", "/", "\\", "%2e%2e", "%2f", "\0", "a", "~", "$HOME", "\n", "C:", "‥", "／", " ")
MARK = "escaped"
PROMISE = "no name leads out of the directory that it belongs to"


@dataclass(frozen=True)
class PathsPart:
    """See the module."""

    names: int = 40
    rounds: int = 40
    name: str = "paths"
    title: str = "topics, groups, keys, objects and addresses that climb out of directories"

    def missing(self) -> str:
        return ""

    def round(self, seed: int, scratch: Path) -> Outcome:
        chance = random.Random(seed)
        names = [name_by(chance) for _ in range(self.names)]
        inside = scratch / "deep" / "inside"
        inside.mkdir(parents=True)
        outcome = Outcome()
        outcome.counts.update(rounds=1, names=len(names))
        wrong = [*_at_a_broker(inside, names, outcome), *_at_drivers(inside, names, outcome)]
        outside = sorted(
            str(path.relative_to(scratch))
            for path in scratch.rglob("*")
            if inside not in path.parents and path not in (inside, inside.parent)
        )
        wrong += [f"files outside of their directory: {outside[:5]}"] if outside else []
        outcome.findings += [Finding(PROMISE, each, seed) for each in wrong]
        return outcome

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        return next(iter(self.round(seed, scratch).findings), None)


def name_by(chance: random.Random) -> str:
    """A name that climbs, marked so that what it leaves can be recognised."""
    climbing = "../" * chance.randint(1, 6) + MARK
    return climbing if chance.random() < 0.3 else "".join(chance.choices(PIECES, k=chance.randint(1, 6))) + MARK


def _at_a_broker(inside: Path, names: list[str], outcome: Outcome) -> list[str]:
    wrong = []
    with (
        Broker.open(inside / "store", config=broker_config(), **SMALL) as broker,
        BlockingClient("127.0.0.1", broker.port, timeout_s=60.0) as client,
    ):
        for name in names:
            for command in _commands(name):
                reported = repr(command)
                try:
                    answer = client.request(command)
                except RemotingError as error:
                    wrong.append(f"not answered ({error}): {reported[:200]}")
                    continue
                outcome.counts["requests"] += 1
                if answer.code == ResponseCode.SUCCESS and command.code in MAKING and not _is_plain(name):
                    wrong.append(f"accepted: {reported[:200]}")
        made = [*broker.parts.topics.table, *broker.parts.groups.table]
        wrong += [f"a topic or group named {name!r}" for name in made if not _is_plain(name.replace("%", ""))]
    return wrong


MAKING = frozenset((310, 17, 200))


def _commands(name: str) -> list[RemotingCommand]:
    queues = {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    times = {"beginTimestamp": "0", "endTimestamp": "1"}
    place = {"topic": name, "consumerGroup": name, "queueId": "0"}
    return [
        send_command(name, b"body"),
        RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext={"topic": name, "defaultTopic": "TBW102", **queues}),
        RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext={**place, "commitOffset": "1"}),
        RemotingCommand(RequestCode.QUERY_MESSAGE, ext={**place, "key": name, "maxNum": "1", **times}),
        RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": name}),
        RemotingCommand(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext={"groupName": name}),
        RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, body=f"storePathRootDir={name}".encode("utf-8", "replace")),
    ]  # fmt: skip


def _is_plain(name: str) -> bool:
    return all(letter.isascii() and (letter.isalnum() or letter in "_-|%") for letter in name)


def _at_drivers(inside: Path, names: list[str], outcome: Outcome) -> list[str]:
    """Objects and segments of both drivers that keep files, by names that climb; `..` in an address is the user's."""
    wrong = []
    for number, query in enumerate(("", "?driver=object")):
        root = inside / f"tier-{number}"
        driver = open_driver(f"file://{root}{query}", retry=None)
        for name in names:
            for what, act in _acts(driver, name):
                outcome.counts["driver_calls"] += 1
                try:
                    act()
                except (TierError, IllegalMessage):
                    continue  # Refused in words; where it was not, files tell.
                except (ValueError, OSError) as error:
                    wrong.append(f"{what} of {name!r}: {type(error).__name__}: {error}")
        driver.close()
    for name, check in itertools.product(names, (check_topic, check_group)):
        try:
            check(name)
        except IllegalMessage:
            continue
        if not _is_plain(name):
            wrong.append(f"{check.__name__} lets {name!r} pass")
    return wrong


def _acts(driver: TierDriver, name: str) -> list[tuple[str, Callable[[], object]]]:
    def segment() -> object:
        return driver.write(QueueKey("c", "b", name, 0).segment(SegmentType.COMMIT_LOG, 0), 0, [b"data"])

    def cluster() -> object:
        return driver.write(QueueKey(name, "b", "t", 0).segment(SegmentType.COMMIT_LOG, 0), 0, [b"data"])

    return [
        ("put_object", lambda: driver.put_object(name, b"data")),
        ("get_object", lambda: driver.get_object(name)),
        ("delete_object", lambda: driver.delete_object(name)),
        ("list_objects", lambda: driver.list_objects(name)),
        ("write by topic", segment),
        ("write by cluster", cluster),
    ]
