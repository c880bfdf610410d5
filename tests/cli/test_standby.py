"""Replicas of a broker as processes: a master dies, stops, hands over or loses its bucket, and nothing is lost."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.brokers import send_command
from broker.consuming import pull_fields
from campaign.power_cuts.victims import stop
from cli.standbys import SUBSCRIBED, Replicas, Sending, ask_master, check, messages, replicas
from servers.careless_bucket import CarelessBucket
from servers.preloaded import Preloaded
from servers.seaweedfs import SeaweedFS, Unavailable
from servers.serving import SIZES, Serving
from tiermq.cli.main import cli
from tiermq.errors import RemotingError
from tiermq.message.record import decode_records
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.replication.master_lease import decode_master_lease, master_lease_name
from tiermq.tier.tiered_store import TieredStore
from waiting import until


def test_a_killed_master_is_replaced_and_returns_as_a_slave(tmp_path: Path) -> None:
    with replicas(tmp_path, "--lease", f"file://{tmp_path}/lease") as cluster:
        a, b = cluster.start("a"), cluster.start("b")
        assert (a.ready["role"], b.ready["role"]) == ("SYNC_MASTER", "SLAVE")
        with Sending(cluster) as sending:
            sending.more()
            until(lambda: cluster.in_sync(a) == [1, 2])
            masters = [a, b]

            def has_both(master: Serving) -> bool:
                return cluster.in_sync(master) == [1, 2]

            for epoch in (2, 3, 4):
                master, other = masters
                sending.more()
                master.kill()
                until(partial(cluster.is_master, other))
                assert cluster.status(other)["epoch"] == epoch
                sending.more()
                master.start()
                assert master.ready["role"] == "SLAVE"
                until(partial(has_both, other))
                masters.reverse()
        assert max(sending.gaps_s) < 60, "a master that was killed is replaced"
        check(sending, messages(masters[0].address))
        found = cluster.run("broker", "status", "b1")
        assert found["hasMaster"]
        assert sorted(each["role"] for each in found["replicas"]) == ["master", "slave"]
        master, slave = masters
        until(lambda: cluster.status(slave)["election"]["address"] == master.address)
        said = CliRunner().invoke(cli, ["broker", "status", slave.address, "-n", cluster.name_server]).output
        number = cluster.status(master)["replicaId"]
        assert f"the master is replica {number} at {master.address}, which has the lease, this replica does not" in said
        assert "only this replica was asked, and it is not the master" in said
        assert "no replica is known to be the master" not in said


def test_the_status_warns_of_a_master_without_another_replica_in_sync(tmp_path: Path) -> None:
    with replicas(tmp_path, "--lease", f"file://{tmp_path}/lease") as cluster:
        a, b = cluster.start("a"), cluster.start("b")
        until(lambda: cluster.in_sync(a) == [1, 2])

        def shown() -> str:
            return CliRunner().invoke(cli, ["status", "-n", cluster.name_server]).output

        alone = "! Broker b1 has no other replica in sync: if this one ends, too, no broker takes over"
        assert "1/1" in shown()
        assert alone not in shown()
        b.kill()
        until(lambda: alone in shown())
        assert re.search(r"master .* none$", shown(), re.MULTILINE)
        b.start()
        until(lambda: alone not in shown() and "1/1" in shown())


def test_replicas_that_are_killed_at_once_have_all_that_was_acknowledged(tmp_path: Path) -> None:
    with replicas(tmp_path, "--lease", f"file://{tmp_path}/lease") as cluster:
        a, b = cluster.start("a"), cluster.start("b")
        with Sending(cluster) as sending:
            until(lambda: cluster.in_sync(a) == [1, 2])
            sending.more()
        a.kill()
        b.kill()
        b.start()  # The other one does not come back.
        until(partial(cluster.is_master, b))
        check(sending, messages(b.address))
        b.kill()
        b.start()
        until(partial(cluster.is_master, b))
        check(sending, messages(b.address))


def test_a_stopped_master_acknowledges_nothing_after_the_take_over(tmp_path: Path) -> None:
    with replicas(tmp_path, "--lease", f"file://{tmp_path}/lease") as cluster:
        a, b = cluster.start("a"), cluster.start("b")
        with Sending(cluster) as sending:
            sending.more()
            until(lambda: cluster.in_sync(a) == [1, 2])
            assert a.process is not None
            with BlockingClient("127.0.0.1", a.port, timeout_s=120.0) as early:
                assert early.request(send_command("T", b"early")).code == ResponseCode.SUCCESS
                stop(a.process.pid)  # A signal alone stops the threads one after the other: some go on for a while.
                waiting = [early.request_later(send_command("T", b"stopped")) for _ in range(50)]
                until(lambda: cluster.is_master(b))
                sending.more()
                a.process.send_signal(signal.SIGCONT)
                answers = []
                for each in waiting:
                    try:
                        answers.append(int(each.result().code))
                    except RemotingError:
                        answers.append(-1)
            assert int(ResponseCode.SUCCESS) not in answers
            until(lambda: cluster.status(a)["role"] == "slave")
            until(lambda: cluster.in_sync(b) == [1, 2])
            sending.more()
        found = messages(b.address)
        assert b"stopped" not in found.values()
        # One message of another producer is among them.
        assert not sending.conflicts
        assert {offset: found.get(offset) for offset in sending.acknowledged} == sending.acknowledged
        assert sorted(found) == list(range(len(found)))


def test_the_tail_of_a_replaced_master_is_cut_and_reported(tmp_path: Path) -> None:
    with replicas(tmp_path, "--lease", f"file://{tmp_path}/lease") as cluster:
        a, b = cluster.start("a"), cluster.start("b")
        with Sending(cluster) as sending:
            sending.more()
        until(lambda: cluster.in_sync(a) == [1, 2])
        with BlockingClient("127.0.0.1", b.port) as client:  # Tables follow the log every `masterSyncInterval`.
            until(lambda: b'"T"' in bytes(client.request(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG)).body))
        assert b.process is not None
        end = cluster.status(a)["logEnd"]
        stop(b.process.pid)
        # More than sockets hold: what is on its way when the master dies reaches a replica that goes on.
        bodies = [b"tail %d" % number + bytes(3_000_000) for number in range(12)]
        with BlockingClient("127.0.0.1", a.port) as client:
            for body in bodies:
                client.oneway(send_command("T", body))
            until(lambda: cluster.status(a)["logEnd"] > end + sum(map(len, bodies)))
        a.kill()
        b.process.send_signal(signal.SIGCONT)
        until(lambda: cluster.is_master(b))
        cut_at = cluster.status(b)["logEnd"]
        a.start()
        until(lambda: cluster.in_sync(b) == [1, 2])
        [tail] = cluster.status(a)["cutTails"]
        assert (tail["epoch"], tail["begin"]) == (1, cut_at)
        assert b"tail 7" in Path(tail["path"]).read_bytes(), "file ends are filled with blanks: perhaps not the last"
        found = messages(b.address)
        assert bodies[-1] not in found.values()
        check(sending, found)


def test_of_two_standbys_one_takes_over_and_the_other_follows_it(tmp_path: Path) -> None:
    with replicas(tmp_path, "--lease", f"file://{tmp_path}/lease", in_sync_replicas=2) as cluster:
        a, b, c = (cluster.start(name) for name in "abc")
        with Sending(cluster) as sending:
            until(lambda: cluster.in_sync(a) == [1, 2, 3])
            sending.more()
            a.kill()
            until(lambda: cluster.is_master(b) or cluster.is_master(c))
            first, second = (b, c) if cluster.is_master(b) else (c, b)
            sending.more()
            assert cluster.status(second)["role"] == "slave"
        check(sending, messages(first.address))


def test_a_handover_by_command_loses_nothing_and_is_quick(tmp_path: Path) -> None:
    with replicas(tmp_path, "--lease", f"file://{tmp_path}/lease", master_sync_interval=600_000) as cluster:
        a, b = cluster.start("a"), cluster.start("b")
        with Sending(cluster) as sending:
            sending.more()
            until(lambda: cluster.in_sync(a) == [1, 2])
            cluster.run("topic", "create", "fresh")
            promoted = cluster.run("broker", "promote", b.address)
            assert (promoted["role"], promoted["epoch"]) == ("master", 2)
            topics = ask_master(b.address, RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG))
            assert b"fresh" in bytes(topics.body), "tables are handed over, too"
            sending.more()
            until(lambda: cluster.in_sync(b) == [1, 2])
            demoted = cluster.run("broker", "demote", "b1")
            assert demoted["role"] == "slave"
            until(lambda: cluster.is_master(a))
            sending.more()
        check(sending, messages(a.address))
        assert cluster.status(a)["cutTails"] == cluster.status(b)["cutTails"] == [], "nothing had to be cut"
        b.terminate()
        until(lambda: cluster.in_sync(a) == [1])
        refused = cluster.run("broker", "demote", "b1", code=1)
        assert "expected another replica in sync" in refused["said"]
        with Sending(cluster) as sending:
            sending.more(5)


def test_a_master_that_ends_cleanly_is_replaced_long_before_its_lease_ends(tmp_path: Path) -> None:
    term = {"master_lease_term": 6_000}
    with replicas(tmp_path, "--lease", f"file://{tmp_path}/lease", **term) as cluster:
        a, b = cluster.start("a"), cluster.start("b")
        until(lambda: cluster.in_sync(a) == [1, 2])
        a.terminate()
        name = master_lease_name("DefaultCluster", "b1")
        lease = decode_master_lease((tmp_path / "lease" / name).read_bytes(), name)
        assert lease.holder in (0, 2), "it was released"
        until(lambda: cluster.is_master(b))


def test_a_take_over_with_a_tier_goes_on_where_the_bucket_ends(tmp_path: Path) -> None:
    tier = f"file://{tmp_path}/tier"
    upload = {"tiered_store_group_commit_timeout": 100, "tier_close_timeout": 300_000}
    with replicas(tmp_path, "--tier", tier, **upload) as cluster:
        a, b = cluster.start("a"), cluster.start("b")
        with Sending(cluster) as sending:
            sending.more(50)
            until(lambda: cluster.in_sync(a) == [1, 2])
            until(lambda: list((tmp_path / "tier").rglob("*")))
            a.kill()
            until(lambda: cluster.is_master(b))
            sending.more(50)
            a.start()
            until(lambda: cluster.in_sync(b) == [1, 2])
            promoted = cluster.run("broker", "promote", a.address)
            assert promoted["role"] == "master"
            sending.more(50)
        check(sending, messages(a.address))
        b.terminate()
        until(lambda: cluster.is_master(a))  # On a machine that stalled b may have been the last one.
        a.terminate()
    with TieredStore.open(
        tmp_path / "restored", tier=tier, restore=True, broker_name="b1", broker_cluster_name="DefaultCluster", **SIZES
    ) as store:
        found: dict[int, bytes] = {}
        while page := store.get("T", 0, len(found), 1_000).messages:
            found.update({each.queue_offset: each.body for each in page})
    check(sending, found)


def test_an_empty_machine_takes_over_what_the_bucket_has(tmp_path: Path) -> None:
    tier = f"file://{tmp_path}/tier"
    with replicas(tmp_path, "--tier", tier, tiered_store_group_commit_timeout=100) as cluster:
        a = cluster.start("a")
        with Sending(cluster) as sending:
            sending.more(50)
        a.terminate()  # Uploads everything.
        uploaded = len(sending.acknowledged)
        a.start()
        until(lambda: cluster.is_master(a))
        a.kill()
        shutil.rmtree(tmp_path / "a")
        c = cluster.start("c")
        assert c.ready["role"] == "SLAVE"
        refused = cluster.run("broker", "promote", c.address, code=1)
        assert "is not in sync" in refused["said"] or "does not answer" in refused["said"]
        assert "promote --accept-loss" in refused["said"], "the way out is named"
        promoted = cluster.run("broker", "promote", c.address, "--accept-loss")
        assert promoted["role"] == "master"
        assert promoted["restored"]["messages"] >= uploaded
        lost = promoted["election"]["lost"]
        assert (lost["fromOffset"], lost["queues"], lost["messages"]) == (0, [], 0)
        said = CliRunner().invoke(cli, ["broker", "status", c.address]).output
        assert "with loss accepted: its own log lacked physical offsets 0 to" in said
        assert "lost: 0 messages, not known: what was acknowledged within 3 s after" in said
        assert f"restored from the tier: {promoted['restored']['messages']:,} messages of 1 queues" in said
        check(sending, messages(c.address))
        answer = ask_master(c.address, send_command("T", b"next"))
        assert (answer.code, int(answer.ext["queueOffset"])) == (ResponseCode.SUCCESS, uploaded)


def test_a_take_over_with_loss_reports_which_messages_are_lost(tmp_path: Path) -> None:
    never = {"tiered_store_group_commit_timeout": 86_400_000, "tiered_store_group_commit_count": 1_000_000}
    with replicas(tmp_path, "--tier", f"file://{tmp_path}/tier", **never) as cluster:
        a = cluster.start("a")
        with Sending(cluster) as first:
            first.more(50)
        a.terminate()  # Uploads everything, and nothing is uploaded after that.
        a.start()
        until(lambda: cluster.is_master(a))
        with Sending(cluster) as second:
            second.more(30)
        name = master_lease_name("DefaultCluster", "b1")

        def recorded_end() -> int:
            lease = decode_master_lease((tmp_path / "tier" / name).read_bytes(), name)
            return (lease.queues or {}).get(("T", 0), (0, 0))[1]

        until(lambda: recorded_end() > max(second.acknowledged))
        with Sending(cluster) as third:
            third.more(10)
        a.kill()
        shutil.rmtree(tmp_path / "a")
        c = cluster.start("c")
        lost = cluster.run("broker", "promote", c.address, "--accept-loss")["election"]["lost"]
        found = messages(c.address)
        sent = {**first.acknowledged, **second.acknowledged, **third.acknowledged}
        gone = sorted(set(sent) - set(found))
        assert gone == [*sorted(second.acknowledged), *sorted(third.acknowledged)]
        assert {offset: sent[offset] for offset in found} == first.acknowledged == found
        [queue] = lost["queues"]
        reported = list(range(queue["fromOffset"], queue["toOffset"]))
        assert (queue["topic"], queue["queueId"], lost["messages"]) == ("T", 0, len(reported))
        assert reported == gone[: len(reported)], "each one that it names is lost"
        assert set(gone) - set(reported) <= set(third.acknowledged), "and others only since the last renewal"
        assert lost["unknown"][0] == "what was acknowledged within 3 s after the lease was renewed last"
        said = CliRunner().invoke(cli, ["broker", "status", c.address]).output
        assert f"lost: {len(reported)} messages (T-0 {reported[0]} to {reported[-1]})" in said


def test_a_master_without_its_bucket_stops_and_goes_on_when_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        server = SeaweedFS(tmp_path / "weed")
    except Unavailable as reason:
        pytest.skip(f"no real S3 server here: {reason}")
    with server:
        server.create_bucket("leases")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        with replicas(tmp_path, "--lease", "s3://leases/pair") as cluster:
            a, b = cluster.start("a"), cluster.start("b")
            with Sending(cluster) as sending:
                sending.more()
                until(lambda: cluster.in_sync(a) == [1, 2])
                server.kill()
                until(lambda: not cluster.status(a)["mayAcknowledge"])
                with BlockingClient("127.0.0.1", a.port) as client:
                    answer = client.request(send_command("T", b"without a lease"))
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                before = len(sending.acknowledged)
                assert cluster.status(a)["role"] == "master"
                server.start()
                until(lambda: cluster.is_master(a) or cluster.is_master(b))
                sending.more()
                assert len(sending.acknowledged) > before
            master = a if cluster.is_master(a) else b
            found = messages(master.address)
            assert b"without a lease" not in found.values()
            check(sending, found)


LAGGING = {"tiered_store_group_commit_timeout": 86_400_000, "tiered_store_group_commit_count": 1_000_000}
"""Nothing is uploaded before the broker ends."""
DUE: dict[str, object] = {
    "mapped_file_size_commit_log": 256 * 1024,
    "mapped_file_size_consume_queue": 20 * 1_000,
    "file_reserved_time": 0,
    "delete_commit_log_files_interval": 1,
    "clean_resource_interval": 100,
    "tier_follow_interval": 100,
}
"""Files of the log are small, and may be deleted as soon as they are full."""
LONG_COUNT = 1_000
"""Messages of 1 KB: several files."""


def send_long(to: Serving, count: int = LONG_COUNT) -> dict[int, bytes]:
    """Bodies of the acknowledged ones, by queue offset."""
    found: dict[int, bytes] = {}
    with BlockingClient("127.0.0.1", to.port, timeout_s=60.0) as client:
        for number in range(count):
            body = b"%06d" % number + b"." * 1_000
            answer = client.request(send_command("T", body))
            if answer.code == ResponseCode.SUCCESS:
                found[int(answer.ext["queueOffset"])] = body
    return found


def log_files(of: Serving) -> list[str]:
    return sorted(path.name for path in (of.store / "commitlog").glob("0*"))


def clean(at: Serving) -> None:
    with BlockingClient("127.0.0.1", at.port, timeout_s=60.0) as client:
        answer = client.request(RemotingCommand(RequestCode.DELETE_EXPIRED_COMMITLOG))
    assert answer.code == ResponseCode.SUCCESS


def are_in_sync(cluster: Replicas, master: Serving) -> bool:
    return cluster.in_sync(master) == [1, 2]


def test_a_standby_keeps_what_the_tier_lacks_and_takes_over_with_all_of_it(tmp_path: Path) -> None:
    with replicas(tmp_path, "--tier", f"file://{tmp_path}/tier", **LAGGING, **DUE) as cluster:
        a, b = cluster.start("a"), cluster.start("b")
        until(lambda: cluster.is_master(a) and cluster.in_sync(a) == [1, 2])
        sent = send_long(a)
        assert len(sent) == LONG_COUNT
        until(lambda: cluster.status(b)["confirmedOffset"] == cluster.status(a)["logEnd"])
        until(lambda: cluster.in_sync(a) == [1, 2])
        kept = log_files(b)
        assert len(kept) > 3
        clean(b)
        until(lambda: "is due to be deleted" in b.log() or log_files(b) != kept)
        assert log_files(b) == kept, "they are due, and the tier has nothing of them"
        a.kill()
        until(lambda: cluster.is_master(b))
        assert messages(b.address) == sent
        said = CliRunner().invoke(cli, ["broker", "status", b.address]).output
        assert "lost:" not in said


def test_a_standby_cleans_what_the_tier_has_and_reads_it_from_there(tmp_path: Path) -> None:
    quick = {"tiered_store_group_commit_timeout": 50, "tier_dispatch_interval": 50, "slave_read_enable": True}
    with replicas(tmp_path, "--tier", f"file://{tmp_path}/tier", **quick, **DUE) as cluster:
        a, b = cluster.start("a"), cluster.start("b")
        until(lambda: cluster.is_master(a) and cluster.in_sync(a) == [1, 2])
        sent = send_long(a)
        first = log_files(b)[0]
        clean(b)
        until(lambda: log_files(b)[0] > first)
        answer = _pulled(b)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert [each.body for each in decode_records(bytes(answer.body))][:3] == [sent[0], sent[1], sent[2]]
        assert cluster.status(b)["role"] == "slave"
        for master in (b, a):  # The former master is a slave that reads the tier, too.
            assert cluster.run("broker", "promote", master.address)["role"] == "master"
            until(partial(are_in_sync, cluster, master))
            sent |= {offset: body for offset, body in send_long(master, 100).items() if offset not in sent}
        a.kill()
        until(lambda: cluster.is_master(b))
        assert messages(b.address) == sent


def test_a_standby_whose_log_begins_behind_the_tier_does_not_take_over_by_itself(tmp_path: Path) -> None:
    with replicas(tmp_path, "--tier", f"file://{tmp_path}/tier", **LAGGING, **DUE) as cluster:
        a, b = cluster.start("a"), cluster.start("b")
        until(lambda: cluster.is_master(a) and cluster.in_sync(a) == [1, 2])
        sent = send_long(a)
        until(lambda: cluster.status(b)["confirmedOffset"] == cluster.status(a)["logEnd"])
        b.kill()
        files = log_files(b)
        for name in files[:-2]:
            (b.store / "commitlog" / name).unlink()  # As by an operator without space.
        b.start()
        until(lambda: cluster.in_sync(a) == [1, 2] and cluster.status(a)["logEnd"] == cluster.status(b)["logEnd"])
        with BlockingClient("127.0.0.1", b.port, timeout_s=60.0) as client:
            ext = {"topic": "T", "queueId": "0"}
            first = int(client.request(RemotingCommand(RequestCode.GET_MIN_OFFSET, ext=ext)).ext["offset"])
        assert 0 < first < LONG_COUNT
        a.kill()
        why = f"neither has messages 0 to {first - 1} of T-0"
        until(lambda: why in cluster.status(b)["election"].get("whyNotMaster", ""))
        a.start()
        until(lambda: cluster.is_master(a))
        assert messages(a.address) == sent, "nothing is lost while a replica that has it can be started"
        until(lambda: cluster.in_sync(a) == [1, 2])
        a.kill()
        lost = cluster.run("broker", "promote", b.address, "--accept-loss")["election"]["lost"]
        assert lost["queues"] == [{"topic": "T", "queueId": 0, "fromOffset": 0, "toOffset": first}]
        assert lost["messages"] == first
        said = CliRunner().invoke(cli, ["broker", "status", b.address]).output
        assert f"lost: {first} messages (T-0 0 to {first - 1})" in said


def _pulled(at: Serving, offset: int = 0) -> RemotingCommand:
    ext = {name: str(value) for name, value in {**pull_fields(offset), **SUBSCRIBED, "topic": "T"}.items()}
    return ask_master(at.address, RemotingCommand(RequestCode.PULL_MESSAGE, ext=ext))


def test_roles_change_while_the_tier_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        server = SeaweedFS(tmp_path / "weed")
    except Unavailable as reason:
        pytest.skip(f"no real S3 server here: {reason}")
    with server:
        server.create_bucket("history")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        place = ("--lease", f"file://{tmp_path}/lease")
        with replicas(tmp_path, *place, tier_url="s3://history/pair", **DUE) as cluster:
            a, b = cluster.start("a"), cluster.start("b")
            with Sending(cluster) as sending:
                until(lambda: cluster.in_sync(a) == [1, 2])
                sending.more()
                server.kill()
                for master in (b, a):
                    assert cluster.run("broker", "promote", master.address)["role"] == "master"
                    sending.more()
                    until(partial(are_in_sync, cluster, master))
            check(sending, messages(a.address))
            assert cluster.status(a)["problem"] == cluster.status(b)["problem"] == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--standby", "--namesrv", "127.0.0.1:1"], "expected --tier, or --lease"),
        (["--standby", "--lease", "file:///tmp/x"], "expected --namesrv"),
        (["--lease", "file:///tmp/x"], "expected --standby"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, words: list[str], expected: str) -> None:
    result = CliRunner().invoke(cli, ["serve", str(tmp_path / "s"), "--port", "0", *words])
    assert result.exit_code == 2
    assert expected in result.output


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "{path}", "--port", "0", "--standby", "--namesrv", "127.0.0.1:1", "--lease", "s3://b/p"],
        ["controller", "--port", "0", "--state", "s3://b/p"],
    ],
    ids=["standby", "controller"],
)
def test_a_store_without_conditional_writes_elects_nobody(tmp_path: Path, words: list[str]) -> None:
    """Two masters would both find that they have the lease."""
    with CarelessBucket() as bucket:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        command = [each.format(path=tmp_path / "s") for each in words]
        process = Preloaded(command, stderr=subprocess.PIPE, environment=kept | bucket.environment)
        said, errors = process.communicate()
        assert (process.returncode, said) == (2, "")
        assert "Use a store that has conditional writes" in errors
        assert bucket.objects == {}, "the test leaves nothing"
