"""`serve` on an older copy of its disk, with a tier that knows more: history does not fork."""

from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import send_command
from broker.consuming import bodies_of
from servers.serving import SIZES, Serving
from tiermq import Message
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.store.local_store import LocalStore
from waiting import until


def sent(served: Serving, bodies: range) -> list[int]:
    """The queue offsets of new messages in queue 0 of T."""
    with BlockingClient("127.0.0.1", served.port, timeout_s=120) as client:
        answers = [client.request(send_command("T", b"%d" % each, queue=0)) for each in bodies]
    assert {each.code for each in answers} == {0}, answers[-1].remark
    return [int(each.ext["queueOffset"]) for each in answers]


def end_of(served: Serving) -> int:
    asked = RemotingCommand(RequestCode.GET_MAX_OFFSET, ext={"topic": "T", "queueId": "0"})
    with BlockingClient("127.0.0.1", served.port, timeout_s=120) as client:
        return int(client.request(asked).ext["offset"])


def test_a_broker_on_an_older_copy_of_its_disk_continues_the_history_of_its_tier(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    store, backup = tmp_path / "store", tmp_path / "backup"
    with Serving(store, "--tier", tier) as served:
        assert sent(served, range(20)) == list(range(20))
        served.terminate()
        shutil.copytree(store, backup)
        served.start()
        assert sent(served, range(20, 50)) == list(range(20, 50))
        served.terminate()
        shutil.rmtree(store)
        backup.rename(store)
        served.start()
        assert end_of(served) == 50
        assert sent(served, range(50, 52)) == [50, 51]
        read = [_body(served, each) for each in (0, 19, 20, 49, 50, 51)]
        assert read == ["0", "19", "20", "49", "50", "51"]


def forked(tmp_path: Path, count: int) -> Serving:
    """An older copy of a disk ran without its tier, and gave `count` messages numbers from 20 on, which the tier has of
    others, up to 49.
    """
    store, backup, tier = tmp_path / "store", tmp_path / "backup", (tmp_path / "tier").as_uri()
    with Serving(store, "--tier", tier) as served:
        assert sent(served, range(20)) == list(range(20))
        served.terminate()
        shutil.copytree(store, backup)
        served.start()
        assert sent(served, range(20, 50)) == list(range(20, 50))
    shutil.rmtree(store)
    backup.rename(store)
    with LocalStore.open(store, **SIZES) as local:
        assert [local.put(Message("T", b"forked", 0)).queue_offset for _ in range(count)] == [*range(20, 20 + count)]
    return Serving(store, "--tier", tier, "--metrics-port", "0")


def objects(tmp_path: Path) -> dict[Path, bytes]:
    """Of the queue, in the tier."""
    return {path: path.read_bytes() for path in (tmp_path / "tier").glob("*/*/T/0/*_*/*") if path.is_file()}


def test_a_disk_that_wrote_other_messages_than_its_tier_has_is_not_started(tmp_path: Path) -> None:
    served = forked(tmp_path, 5)
    before = objects(tmp_path)
    with pytest.raises(AssertionError, match="it ended, and its log is") as refused, served:
        pass
    assert "of T-0 is not the one that file:" in str(refused.value)
    assert "restore into an empty one" in str(refused.value)
    assert before
    assert objects(tmp_path) == before


def ready_page(served: Serving) -> tuple[int, dict[str, Any]]:
    with urllib.request.urlopen(f"http://{served.ready['metrics']}/ready") as page:
        return page.status, json.load(page)


def test_a_forked_queue_is_served_and_reported_and_not_uploaded(tmp_path: Path) -> None:
    before: dict[Path, bytes] = {}
    with forked(tmp_path, 40) as served:
        before = objects(tmp_path)
        assert end_of(served) == 60
        assert sent(served, range(1)) == [60]
        assert _body(served, 30) == "forked"  # The tier has another message of that number.
        until(lambda: "warnings" in ready_page(served)[1])
        status, page = ready_page(served)
        assert (status, list(page["warnings"])) == (200, ["forked queues"])
        assert "other messages under the numbers of T-0 from offset 20:" in page["warnings"]["forked queues"]
    assert before
    assert objects(tmp_path) == before
    assert "closed with 41 messages that only" in served.log()


def _body(served: Serving, offset: int) -> str:
    fields = {
        "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "1",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip
    with BlockingClient("127.0.0.1", served.port, timeout_s=120) as client:
        joined = b'{"clientID":"c","consumerDataSet":[{"groupName":"G"}]}'
        assert client.request(RemotingCommand(RequestCode.HEART_BEAT, body=joined)).code == 0
        answer = client.request(RemotingCommand(RequestCode.PULL_MESSAGE, ext=fields))
    (body,) = bodies_of(answer)
    return body
