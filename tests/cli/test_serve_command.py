"""`tiermq serve` as its user runs it: a process, its lines, its signals, its exit codes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from broker.brokers import SMALL, send_command
from tiermq import LocalStore
from tiermq.cli.main import cli
from tiermq.cli.serve import _ready_line
from tiermq.remoting.acl import Credentials
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.tls import trusting_client_context

SMALL_FILE = "\n".join(f"{name} = {value}" for name, value in SMALL.items())
FREE = ("--port", "0", "--namesrv-port", "0")


@contextmanager
def serving(*words: str | Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The command in a process of its own, and what its ready line says. It is ended by SIGTERM and must end well."""
    command = [sys.executable, "-m", "tiermq.cli", "serve", *map(str, words), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate()[1])
        yield process, json.loads(line)
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate()
        assert process.returncode == 0, errors
        assert [json.loads(each)["event"] for each in rest.splitlines()] == ["ending", "ended"]
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def at(address: str, **options: Any) -> BlockingClient:
    host, _, port = address.rpartition(":")
    return BlockingClient(host, int(port), timeout_s=30.0, **options)


def test_a_broker_and_its_name_server_serve_until_sigterm_and_the_store_is_closed_cleanly(tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(SMALL_FILE + '\n[broker]\nbind_address = "127.0.0.1"\nbroker_name = "b1"\n')
    store = tmp_path / "store"
    with serving(store, "-c", config, *FREE, "--metrics-port", "0") as (_, ready):
        assert (ready["event"], ready["name"], ready["store"], ready["tier"]) == ("ready", "b1", str(store), None)
        with at(ready["nameServer"]) as client:
            route = client.request(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "TBW102"}))
        assert ready["address"].encode() in bytes(route.body)
        with at(ready["address"]) as client:
            assert client.request(send_command()).code == ResponseCode.SUCCESS
        with urllib.request.urlopen(f"http://{ready['metrics']}/ready") as page:
            assert page.status == 200
    assert not (store / "abort").exists()
    with LocalStore.open(store, **SMALL) as after:
        assert [message.body for message in after.get("T", 0, 0).messages] == [b"hello"]


def test_a_broker_conf_of_rocketmq_works_and_what_means_nothing_is_one_warning(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text(
        f"brokerName=broker-a\nbindAddress=127.0.0.1\nlistenPort=0\nstorePathRootDir={tmp_path}/store\n"
        f"tieredStoreFilePath={tmp_path}/tier\nhaListenPort=1\nsendMessageThreadPoolNums=2\n"
        "mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\nmaxHashSlotNum=64\nmaxIndexNum=2000\n"
    )
    with serving("-c", config, "--namesrv-port", "0") as (process, ready):
        assert (ready["name"], ready["store"]) == ("broker-a", str(tmp_path / "store"))
        assert ready["tier"] == (tmp_path / "tier").as_uri()
        assert ready["ignored"] == ["haListenPort", "sendMessageThreadPoolNums"]
        assert process.stderr is not None
        assert "mean nothing here: haListenPort, sendMessageThreadPoolNums" in process.stderr.readline()


def test_a_setting_that_was_changed_over_the_wire_is_the_next_start_s_too(tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(SMALL_FILE + '\n[broker]\nbind_address = "127.0.0.1"  # here only\n')
    words = (tmp_path / "store", "-c", config, *FREE)
    with serving(*words) as (_, ready), at(ready["address"]) as client:
        change = RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=7\nbrokerPermission=4\n")
        assert client.request(change).code == ResponseCode.SUCCESS
    with serving(*words) as (_, ready), at(ready["address"]) as client:
        told = bytes(client.request(RemotingCommand(RequestCode.GET_BROKER_CONFIG)).body).decode().splitlines()
    assert {"fileReservedTime=7", "brokerPermission=4"} <= set(told)
    assert "# here only" in config.read_text()


def test_a_broker_can_register_elsewhere_and_tls_and_accounts_are_enforced(tmp_path: Path) -> None:
    accounts = tmp_path / "acl.toml"
    accounts.write_text('[[accounts]]\naccessKey = "ak"\nsecretKey = "a long secret"\nadmin = true\n')
    config = tmp_path / "small.toml"
    config.write_text(SMALL_FILE)
    with (
        serving(tmp_path / "a", "-c", config, "--host", "127.0.0.1", *FREE, "--tls", "enforcing") as (_, first),
        at(first["nameServer"], tls=trusting_client_context()) as client,
    ):
        request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "TBW102"})
        assert client.request(request).code == ResponseCode.SUCCESS
    with serving(tmp_path / "n", "-c", config, "--host", "127.0.0.1", *FREE) as (_, first):
        words = (tmp_path / "b", "-c", config, "--host", "127.0.0.1", "--port", "0", "--name", "b2", "--acl", accounts)
        with serving(*words, "--namesrv", first["nameServer"]) as (_, second):
            assert second["nameServer"] == first["nameServer"]
            with at(second["address"]) as client:
                assert client.request(send_command()).code == ResponseCode.NO_PERMISSION
            with at(second["address"], credentials=Credentials("ak", "a long secret")) as client:
                assert client.request(send_command()).code == ResponseCode.SUCCESS
            with at(first["nameServer"]) as client:
                info = client.request(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
                assert b'"b2"' in bytes(info.body)


def refused(*words: str | Path) -> str:
    """The one line with which it gives up."""
    command = [sys.executable, "-m", "tiermq.cli", "serve", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


def test_what_keeps_it_from_starting_is_told_in_one_line_with_exit_code_2(tmp_path: Path) -> None:
    with socket.socket() as taken, LocalStore.open(tmp_path / "locked", **SMALL):
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        line = refused(tmp_path / "s", "--port", port, "--namesrv-port", "0")
        assert f"broker, 127.0.0.1:{port}: cannot listen there: Address already in use" in line
        line = refused(tmp_path / "s", "--port", "0", "--namesrv-port", port)
        assert f"name server, 127.0.0.1:{port}: cannot listen there" in line
        assert str(tmp_path / "locked") in refused(tmp_path / "locked", *FREE)
    wrong = tmp_path / "broker.conf"
    wrong.write_text("listenPort=many\n")
    line = refused("-c", wrong)
    assert str(wrong) in line
    assert "listen_port" in line
    assert "host:port" in refused(tmp_path / "s", "--port", "0", "--namesrv", "nonsense")
    assert "gopher" in refused(tmp_path / "s", *FREE, "--tier", "gopher://x")


def test_without_a_file_only_this_machine_can_connect(tmp_path: Path) -> None:
    with serving(tmp_path / "store", *FREE) as (process, ready):
        assert ready["address"].startswith("127.0.0.1:")
        listening = _listening_addresses(process.pid)
        assert listening == {"0100007F"}


def _listening_addresses(pid: int) -> set[str]:
    """Local addresses that a process listens at, as the kernel writes them."""
    sockets = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            found.add(fields[1].partition(":")[0])
    return found


@pytest.mark.parametrize("word", ["Examples:", "--tier", "--json", "exit code: 0 after a clean end"])
def test_help_teaches(word: str) -> None:
    assert word.lower() in CliRunner().invoke(cli, ["serve", "--help"]).output.lower()


def test_the_ready_line_says_how_long_history_is_kept(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("tieredStoreFileReservedTime=72\nbindAddress=127.0.0.1\n")
    with serving(tmp_path / "store", *FREE, "-c", config, "--tier", (tmp_path / "tier").as_uri()) as (_, ready):
        assert ready["retention"] == {"hours": 72, "max_bytes": None}
    assert _ready_line(ready).endswith(f"tier {(tmp_path / 'tier').as_uri()}, history kept 3 d")
