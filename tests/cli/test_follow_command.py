"""`tiermq follow` beside a TierMQ master: killed, restarted, with a bucket that goes away; and what it refuses."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from broker.brokers import SMALL, Producer, broker_config, running, send_command
from broker.replication.pairs import sends_of
from replication.streams import SlaveSocket
from servers.loopback import free_ports
from servers.preloaded import Preloaded
from servers.seaweedfs import SeaweedFS, Unavailable
from servers.serving import Following
from tiermq.broker.broker import Broker
from tiermq.client.observed_master import ObservedMaster
from tiermq.message.record import decode_records
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object
from tiermq.remoting.permissions import AccessFile, Credentials
from tiermq.replication.ha_stream import HEADER, HELLO, REPORT
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.tier_view import view_tier
from waiting import until

SOON = {
    "tiermq.cli.follow.GUARD_MS": 1_500,
    "tiermq.cli.follow.GUARD_MORE_MS": 500,
    "tiermq.store.wiring.CLEAN_DELAY_MS": 0,
}
"""When a message counts as settled, and when files are first cleaned: half a minute and a minute otherwise."""
LOG_BYTES = int(SMALL["mapped_file_size_commit_log"])


def send(broker: Broker, first: int, count: int) -> None:
    with Producer(broker) as producer:
        for number in range(first, first + count):
            answer = producer.send(body=b"%06d" % number + b"." * 1000)
            while answer.code == ResponseCode.SYSTEM_BUSY:
                answer = producer.send(body=b"%06d" % number + b"." * 1000)
            assert answer.code == ResponseCode.SUCCESS


def pull_command(offset: int = 0) -> RemotingCommand:
    fields = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "queueOffset": offset, "maxMsgNums": 8, "sysFlag": 4}
    more = {"commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*"}
    return RemotingCommand(
        RequestCode.PULL_MESSAGE, ext={name: str(value) for name, value in {**fields, **more}.items()}
    )


def pulled(address: str, offset: int) -> list[int]:
    host, _, port = address.rpartition(":")
    with BlockingClient(host, int(port), timeout_s=60.0) as client:
        answer = client.request(pull_command(offset))
    return [int(each.body[:6]) for each in decode_records(answer.body)] if answer.code == ResponseCode.SUCCESS else []


def all_there(broker: Broker) -> Any:
    """A TierMQ master writes its tables into the log while slaves copy it: the end may be a little further."""
    end = broker.parts.local.max_physical_offset
    return lambda reported: reported["copiedTo"] >= end and reported["notUploaded"] == 0


def test_a_master_is_tiered_while_everything_dies_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        s3 = SeaweedFS(tmp_path)
    except Unavailable as reason:
        pytest.skip(f"no real S3 server here: {reason}")
    quick = {
        "sync_flush_timeout": 1_000,
        "slave_timeout": 1_000,
    }  # For so long a sender may wait, and its message stays.
    config = broker_config(ha_listen_port=0, in_sync_replicas=1)
    with s3, running(tmp_path / "master", config=config, **quick) as master:
        s3.create_bucket("history")
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        words = ("--master", master.replication.ha_address, "--master-address", master.address)
        send(master, 0, 2_500)
        with Following(tmp_path / "shadow", *words, "--tier", "s3://history/x", constants=SOON) as shadow:
            shadow.progress(all_there(master))
            shadow.kill()
            send(master, 2_500, 500)
            shadow.start()
            s3.kill()
            send(master, 3_000, 2_500)
            sent = master.parts.local.max_physical_offset
            shadow.progress(lambda reported: reported["copiedTo"] >= sent)
            s3.start()
            shadow.progress(all_there(master))
            until(lambda: pulled(shadow.ready["address"], 0) == list(range(8)))  # Its tables may come after the log.
            shadow.progress(lambda reported: reported["localFrom"] > 0)
            assert pulled(shadow.ready["address"], 0) == list(range(8)), "also what its disk no longer has"
            port = master.replication.master
            assert port is not None
            assert all(each.ack < port.slaves()[0].sent_to for each in port.slaves())
            copied = shadow.progress(all_there(master))["copiedTo"]
            shadow.terminate()
        files = sorted((tmp_path / "shadow" / "commitlog").glob("0*"))
        assert 0 < len(files) < master.parts.local.max_physical_offset // LOG_BYTES, "bounded on disk"
        for file in files:
            length = min(copied - int(file.name), LOG_BYTES)
            theirs = tmp_path / "master" / "store" / "commitlog" / file.name
            assert file.read_bytes()[:length] == theirs.read_bytes()[:length]
        [queue] = [each for each in view_tier(open_driver("s3://history/x")).queues if each.key.topic == "T"]
        assert (queue.min_offset, queue.max_offset) == (0, 5_500)


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        ({"min_in_sync_replicas": 2}, ResponseCode.SERVICE_NOT_AVAILABLE),
        ({"min_in_sync_replicas": 2, "enable_auto_in_sync_replicas": True}, ResponseCode.SERVICE_NOT_AVAILABLE),
        ({"enable_auto_in_sync_replicas": True}, ResponseCode.SUCCESS),
        ({}, ResponseCode.SLAVE_NOT_AVAILABLE),
    ],
)
def test_a_master_answers_with_an_observer_what_it_answers_without_one(
    tmp_path: Path, rules: dict[str, Any], code: ResponseCode
) -> None:
    config = broker_config(ha_listen_port=0, in_sync_replicas=2, **rules)
    sync: dict[str, Any] = {"broker_role": "SYNC_MASTER", "slave_timeout": 600_000}
    with running(tmp_path / "master", config=config, **sync) as master, Producer(master) as producer:
        assert producer.send().code == code
        end = master.parts.local.max_physical_offset
        words = ("--master", master.replication.ha_address, "--master-address", master.address)
        with Following(tmp_path / "shadow", *words, "--tier", (tmp_path / "tier").as_uri()) as shadow:
            reported = shadow.progress(lambda reported: reported["connected"])
            assert producer.send().code == code, "it waits for nothing more"
            shown = decode_object(request(master, RequestCode.GET_BROKER_HA_STATUS))
            assert (shown["inSyncSlaveNums"], [each["inSync"] for each in shown["haConnectionInfo"]]) == (0, [False])
            metrics = master.render_metrics()
            assert "tiermq_replicas_in_sync 1\n" in metrics
            assert "tiermq_slaves 0\n" in metrics
            if code == ResponseCode.SLAVE_NOT_AVAILABLE:
                assert reported["copiedTo"] == 0 < end <= reported["behindBytes"], "nothing of it is committed"


def test_what_a_master_has_not_committed_is_neither_copied_nor_tiered(tmp_path: Path) -> None:
    config = broker_config(ha_listen_port=0, in_sync_replicas=2, ha_housekeeping_interval=2_000_000_000)
    tier = tmp_path / "tier"
    sync: dict[str, Any] = {"broker_role": "SYNC_MASTER", "slave_timeout": 600_000}
    with running(tmp_path / "master", config=config, **sync) as master, Producer(master) as producer:
        port = master.replication.master
        assert port is not None
        words = ("--master", master.replication.ha_address, "--master-address", master.address)
        with Following(tmp_path / "shadow", *words, "--tier", tier.as_uri(), constants=SOON) as shadow:
            shadow.progress(lambda reported: reported["connected"])
            with SlaveSocket(port.port, source="127.0.0.2") as replica:
                replica.report(0)
                until(lambda: port.state.in_sync == 2)
                first = producer.client.request_later(send_command("T", b"000001"), 600)
                until(lambda: sends_of(master).durable.waiting == 1)
                replica.report(begun := master.parts.local.max_physical_offset)
                assert first.result(600).code == ResponseCode.SUCCESS
                held = producer.client.request_later(send_command("T", b"000002"), 600)
                until(lambda: sends_of(master).durable.waiting == 1)
                end = master.parts.local.max_physical_offset
                shadow.progress(lambda reported: reported["copiedTo"] == begun)
                until(lambda: pulled(shadow.ready["address"], 0) == [1])
                until(lambda: uploaded(tier) == 1)
                replica.report(end)
                assert held.result(600).code == ResponseCode.SUCCESS
                shadow.progress(lambda reported: reported["copiedTo"] == end)
                until(lambda: pulled(shadow.ready["address"], 0) == [1, 2])
                until(lambda: uploaded(tier) == 2)


def uploaded(tier: Path) -> int:
    """How many messages of T's queue 0 the tier has."""
    found = [each for each in view_tier(open_driver(tier.as_uri())).queues if each.key.topic == "T"]
    return found[0].max_offset if found else 0


def request(broker: Broker, code: int) -> bytes:
    with BlockingClient("127.0.0.1", broker.port) as client:
        return bytes(client.request(RemotingCommand(code)).body)


@contextmanager
def silent_ha_port() -> Iterator[str]:
    """The HA port of a master that sends one heartbeat on each connection, at the offset it was asked for."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            kept = []
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    break
                kept.append(connection)
                asked = HELLO
                while asked == HELLO:
                    (asked,) = REPORT.unpack(connection.recv(REPORT.size, socket.MSG_WAITALL))
                connection.sendall(HEADER.pack(asked, 0))
            for each in kept:
                each.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_copy_that_is_behind_never_says_that_it_is_not(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    with silent_ha_port() as ha, ExitStack() as there:
        master = there.enter_context(running(tmp_path / "master"))
        send(master, 0, 10)
        end = master.parts.local.max_physical_offset
        words = ("--master", ha, "--master-address", master.address, "--tier", tier, "--metrics-port", "0")
        with Following(tmp_path / "shadow", *words) as shadow:
            reported = shadow.progress(lambda reported: reported["problem"] is None)
            assert (reported["copiedTo"], reported["behindBytes"], reported["problem"]) == (0, end, None)
            assert f"tiermq_follow_behind_bytes {end}\n" in metrics_of(shadow)
            there.close()
            reported = shadow.progress(lambda reported: reported["problem"] is not None)
            assert reported["behindBytes"] is None, "its end is not known"
            assert "how far behind this copy is, is not known" in reported["problem"]
            assert "tiermq_follow_behind_bytes NaN\n" in metrics_of(shadow)
            shadow.kill()


def test_no_report_has_0_bytes_behind_before_the_copy_is_there(tmp_path: Path) -> None:
    with running(tmp_path / "master", config=broker_config(ha_listen_port=0)) as master:
        send(master, 0, 10)
        end = master.parts.local.max_physical_offset
        words = ("--master", master.replication.ha_address, "--master-address", master.address)
        seen: list[dict[str, Any]] = []
        with Following(tmp_path / "shadow", *words, "--tier", (tmp_path / "tier").as_uri()) as shadow:
            while not seen or seen[-1]["copiedTo"] < end:
                seen.append(shadow.next_progress())
        assert all(
            reported["behindBytes"] is None or reported["behindBytes"] >= end - reported["copiedTo"]
            for reported in seen
        )


def metrics_of(shadow: Following) -> str:
    with urlopen(f"http://{shadow.ready['metrics']}/metrics") as answer:
        text: str = answer.read().decode()
        return text


def registered(port: int) -> set[str]:
    """The brokers that a name server knows."""
    with BlockingClient("127.0.0.1", port) as client:
        answer = client.request(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
    return set(decode_object(answer.body)["brokerAddrTable"])


def refused(path: Path, *words: str) -> str:
    process = Preloaded(["follow", str(path), "--tier", (path / "t").as_uri(), *words], stderr=subprocess.PIPE)
    _, errors = process.communicate()
    assert process.returncode == 2, errors
    return errors


def test_what_cannot_be_followed_is_refused_in_words(tmp_path: Path) -> None:
    assert "expected --master, or --namesrv" in refused(tmp_path / "a")
    free, _ = free_ports(2)
    assert "--master is the HA port" in refused(tmp_path / "p", "--master", f"127.0.0.1:{free + 1}")
    with NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0)) as names:
        at = ("--namesrv", f"127.0.0.1:{names.port}", "--broker", "nobody")
        assert "expected a master of broker nobody at the name server, found none" in refused(tmp_path / "b", *at)
        at_names = {"namesrv_addr": f"127.0.0.1:{names.port}"}
        with (
            running(tmp_path / "x", config=broker_config(broker_name="x", **at_names)),
            running(tmp_path / "y", config=broker_config(broker_name="y", **at_names)),
        ):
            until(lambda: registered(names.port) == {"x", "y"})
            found = refused(tmp_path / "n", *at[:2])
            assert "expected one master at the name server, found x, y: give --broker with one of them" in found
    with running(tmp_path / "alone") as alone:  # A port of the system's choice opens no HA port.
        at = ("--master", "127.0.0.1:1", "--master-address", alone.address)
        other = {**SMALL, "mapped_file_size_commit_log": 2 * LOG_BYTES}
        log = tmp_path / "c" / "commitlog"
        log.mkdir(parents=True)
        with (log / f"{0:020}").open("wb") as file:
            file.truncate(other["mapped_file_size_commit_log"])
        assert "it is the copy of another master" in refused(tmp_path / "c", *at)


ACCOUNTS = '[[accounts]]\naccessKey = "root"\nsecretKey = "rootsecret"\nadmin = true\n'


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("aclEnable=true", "give --acl"),
        ("tls.server.mode=enforcing", "`tiermq serve --read-only --tls enforcing` has it"),
        ("storeType=defaultRocksDB", "there is no RocksDB here"),
        ("tierDispatchEnabled=false", "tierDispatchEnable"),
    ],
)
def test_a_secured_file_does_not_open_a_copy(tmp_path: Path, line: str, words: str) -> None:
    config = tmp_path / "f.conf"
    config.write_text(f"{line}\n")
    found = refused(tmp_path / "a", "--master", "127.0.0.1:1", "-c", str(config))
    assert f"{line}: " in found
    assert words in found
    assert "To start without it: --accept-weaker" in found


def test_a_copy_of_a_protected_master_asks_for_accounts_where_others_reach_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts, config = tmp_path / "accounts.toml", tmp_path / "f.conf"
    accounts.write_text(ACCOUNTS)
    quick = "tieredStoreGroupCommitTimeout=100\ntierDispatchInterval=100\nmasterSyncInterval=200\n"
    config.write_text(f"{quick}aclEnable=true\nnoSuchKey=1\n")
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "root")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "rootsecret")
    everywhere = ("--host", "0.0.0.0")
    assert "the master asks for accounts" in refused(tmp_path / "a", "--master", "127.0.0.1:1", *everywhere)
    with running(tmp_path / "m", acl=AccessFile(accounts), config=broker_config(ha_listen_port=0)) as master:
        with BlockingClient("127.0.0.1", master.port, credentials=Credentials("root", "rootsecret")) as client:
            assert client.request(send_command("T", b"000007")).code == ResponseCode.SUCCESS
        words = ("--master", master.replication.ha_address, "--master-address", master.address)
        tier = ("--tier", (tmp_path / "t").as_uri())
        with Following(tmp_path / "s", *words, *tier, "-c", str(config), "--acl", str(accounts)) as shadow:
            shadow.progress(all_there(master))
            assert shadow.ready["open"] is False
            host, port = "127.0.0.1", int(shadow.ready["address"].rpartition(":")[2])
            with BlockingClient(host, port, timeout_s=60.0, credentials=Credentials("root", "rootsecret")) as client:
                # Its tables may come after the message.
                until(lambda: client.request(pull_command()).code != ResponseCode.TOPIC_NOT_EXIST)
                assert client.request(pull_command()).code == ResponseCode.SUCCESS
            with BlockingClient(host, port, timeout_s=60.0) as client:
                assert client.request(pull_command()).code == ResponseCode.NO_PERMISSION
            shadow.terminate()
        assert "unknown settings: noSuchKey" in shadow.errors.read_text()


def test_a_tier_that_serve_refuses_is_refused_here_too(tmp_path: Path) -> None:
    with running(tmp_path / "m", config=broker_config(ha_listen_port=0)) as master:
        words = ("--master", master.replication.ha_address, "--master-address", master.address)
        found = refused(tmp_path / "a", *words, "--tier", "file:///proc/nope/tier")
    assert "expected a directory that can be created" in found
    assert "To start without it: --tier-later" in found


@pytest.mark.parametrize(
    ("begin", "end", "asked"),
    [(0, 0, 0), (0, 5, 0), (0, 15, 1), (10, 15, 0), (10, 35, 10), (0, 10, 1)],
)
def test_the_whole_log_is_asked_for_whatever_a_report_of_0_means(begin: int, end: int, asked: int) -> None:
    assert ObservedMaster("c", "b", "a:1", "a:2", 10, 3_000, begin, end).begin == asked
