"""`tiermq serve --read-only`: any number of brokers serve the history in a bucket, with an account that only reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import send_command
from servers.loopback import free_ports
from servers.seaweedfs import SeaweedFS, missing
from servers.serving import Serving
from tiermq.message.record import decode_records
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object
from waiting import until

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "there is one")
COUNT = 200
FAST = {"tier_follow_interval": 100, "master_sync_interval": 100}


def as_reader(seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, processes have an account that cannot write."""
    for name, value in seaweedfs.reader_environment.items():
        monkeypatch.setenv(name, value)


def tiermq(name_server: str, *words: str, text: str | None = None, code: int = 0) -> str:
    environment = os.environ | {"NAMESRV_ADDR": name_server}
    done = subprocess.run(
        [sys.executable, "-m", "tiermq.cli", *words], input=text, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def send(address: str, first: int, count: int) -> None:
    host, _, port = address.rpartition(":")
    with BlockingClient(host, int(port), timeout_s=60.0) as client:
        for number in range(first, first + count):
            properties = f"UNIQ_KEY\x01{number:032X}\x02KEYS\x01k{number}\x02WAIT\x01true\x02"
            command = send_command("T", b"%d" % number, queue=number % 4, properties=properties)
            answer = client.request(command)
            while answer.code == ResponseCode.SYSTEM_BUSY:
                answer = client.request(command)
            assert answer.code == ResponseCode.SUCCESS, answer.remark


def ask(address: str, code: int, **ext: object) -> RemotingCommand:
    host, _, port = address.rpartition(":")
    with BlockingClient(host, int(port), timeout_s=60.0) as client:
        return client.request(RemotingCommand(code, ext={name: str(value) for name, value in ext.items()}))


def pull(address: str, offset: int, *, queue: int = 0, waits: bool = False) -> RemotingCommand:
    more = {"commitOffset": 0, "suspendTimeoutMillis": 600_000, "subVersion": 0, "subscription": "*"}
    return ask(
        address, RequestCode.PULL_MESSAGE, consumerGroup="CG", topic="T", queueId=queue, queueOffset=offset,
        maxMsgNums=32, sysFlag=6 if waits else 4, **more,
    )  # fmt: skip


def names_in(seaweedfs: SeaweedFS, url: str) -> dict[str, Any]:
    prefix = url.removeprefix("s3://history/")
    return {each["path"]: each["e_tag"] for page in seaweedfs.store("history").list(prefix) for each in page}


def test_readers_serve_a_bucket_with_an_account_that_cannot_write(
    tmp_path: Path, seaweedfs: SeaweedFS, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Serving(tmp_path / "writer", "--tier", url) as writer:
        send(writer.address, 0, COUNT)
        tiermq(writer.name_server, "consume", "T", "--group", "audit", "--queue", "0", "--max", "10", "--quiet")
    before = names_in(seaweedfs, url)
    as_reader(seaweedfs, monkeypatch)
    wanted = sorted(str(number) for number in range(COUNT))
    with (
        Serving(tmp_path / "one", "--read-only", "--tier", url, **FAST) as one,
        Serving(tmp_path / "two", "--read-only", "--tier", url, **FAST) as two,
    ):
        assert one.ready["readOnly"]
        for reader in (one, two):
            assert sorted(tiermq(reader.name_server, "consume", "T", "--bodies").split()) == wanted
        found = json.loads(tiermq(one.name_server, "query", "T", "--key", "k7", "--json"))
        assert found["body"] == "7"
        assert tiermq(one.name_server, "query", "T", "--queue", "3", "--offset", "1", "--json")
        by_time = ask(two.address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic="T", queueId=1, timestamp=0)
        assert by_time.ext["offset"] == "0"
        assert len(tiermq(one.name_server, "consume", "T", "--group", "audit", "--bodies").split()) == COUNT - 10, (
            "a group begins where it was at the writer"
        )
        assert tiermq(one.name_server, "consume", "T", "--group", "audit", "--bodies") == "", (
            "its commits are kept here"
        )
        assert len(tiermq(two.name_server, "consume", "T", "--group", "audit", "--bodies").split()) == COUNT - 10
        said = ask(
            one.address, RequestCode.UPDATE_AND_CREATE_TOPIC, topic="N", readQueueNums=1, writeQueueNums=1, perm=6
        )
        assert "only reads a tier" in (said.remark or "")
        host, _, port = one.address.rpartition(":")
        with BlockingClient(host, int(port)) as client:
            said = client.request(send_command("T", b"x"))
        assert said.code != ResponseCode.SUCCESS
        one.terminate()
        one.start()
        assert tiermq(one.name_server, "consume", "T", "--group", "audit", "--bodies") == "", "also after a restart"
        assert not list((tmp_path / "one" / "commitlog").glob("*"))
    assert names_in(seaweedfs, url) == before
    assert "refus" not in one.log()


def test_a_waiting_consumer_gets_what_the_writer_uploads_meanwhile(
    tmp_path: Path, seaweedfs: SeaweedFS, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {"tiered_store_group_commit_timeout": 100, "tier_dispatch_interval": 100}
    with Serving(tmp_path / "writer", "--tier", url, **quick) as writer:
        send(writer.address, 0, 40)
        until(lambda: len(names_in(seaweedfs, url)) >= 8)
        as_reader(seaweedfs, monkeypatch)
        with Serving(tmp_path / "reader", "--read-only", "--tier", url, **FAST) as reader:
            seen = 0
            while seen < 20:
                if seen == 10:
                    send(writer.address, 40, 40)
                answer = pull(reader.address, seen, waits=True)
                if answer.code == ResponseCode.SUCCESS:
                    found = [int(each.body) for each in decode_records(answer.body)]
                    assert found == list(range(4 * seen, 4 * (seen + len(found)), 4))
                    seen += len(found)
            assert pull(reader.address, 1_000_000).code == ResponseCode.PULL_NOT_FOUND, "no consumer is sent back"


def test_a_reader_without_a_directory_leaves_none(
    tmp_path: Path, seaweedfs: SeaweedFS, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b1", "b2"):
        with Serving(tmp_path / name, "--tier", url, broker_name=name) as writer:
            send(writer.address, 0, 4)
    as_reader(seaweedfs, monkeypatch)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    port, names = map(str, free_ports(2))
    command = [sys.executable, "-m", "tiermq.cli", "serve", "--read-only", "--tier", url, "--port", port, "--json"]
    refused = subprocess.run([*command, "--namesrv-port", names], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "expected one broker, found b1 of DefaultCluster, b2 of DefaultCluster: give --name" in refused.stderr
    at = [*command, "--name", "b1", "--namesrv", "127.0.0.1:1"]
    refused = subprocess.run(at, capture_output=True, text=True, check=False)
    assert "expected a --broker-id above 0" in refused.stderr
    running = subprocess.Popen([*command, "--namesrv-port", names, "--name", "b2"], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    ready = json.loads(running.stdout.readline())
    assert list((tmp_path / "scratch").iterdir())
    assert len(tiermq(ready["nameServer"], "consume", "T", "--bodies").split()) == 4
    running.terminate()
    running.communicate()
    assert running.returncode == 0
    assert not list((tmp_path / "scratch").iterdir())


def test_a_reader_at_the_clusters_name_server_is_one_more_slave(
    tmp_path: Path, seaweedfs: SeaweedFS, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {"tiered_store_group_commit_timeout": 100, "tier_dispatch_interval": 100}
    with Serving(tmp_path / "writer", "--tier", url, **quick) as writer:
        send(writer.address, 0, 40)
        until(lambda: len(names_in(seaweedfs, url)) >= 8)
        as_reader(seaweedfs, monkeypatch)
        words = ("--read-only", "--tier", url, "--broker-id", "7", "--namesrv", writer.name_server)
        with Serving(tmp_path / "reader", *words, **FAST) as reader:
            info = decode_object(ask(writer.name_server, RequestCode.GET_BROKER_CLUSTER_INFO).body)
            assert info["brokerAddrTable"]["b1"]["brokerAddrs"] == {"0": writer.address, "7": reader.address}
            answer = pull(reader.address, 0)
            assert (answer.code, answer.ext["suggestWhichBrokerId"]) == (ResponseCode.SUCCESS, "7")
            answer = pull(reader.address, 10)
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert answer.ext["suggestWhichBrokerId"] == "0", "at the end of the tier the consumer goes back"
