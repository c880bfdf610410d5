"""Brokers whose roles change while their processes run."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from broker.brokers import Producer, send_command, stored
from broker.consuming import Peer
from broker.replication.elections import Member, member
from broker.replication.pairs import ask
from broker.replication.test_reading_from_slaves import pull
from tiermq.broker import broker
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.elected_broker import cut_tails
from tiermq.broker.replication.replication import Elected
from tiermq.cli.main import cli
from tiermq.errors import RemotingError, RequestRefused
from tiermq.message.record import decode_records
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object
from tiermq.replication.election import Decision, Role
from tiermq.tier.tiered_store import NotUploaded, TieredStore
from waiting import until


def send(to: Member, *bodies: bytes) -> list[int]:
    """The queue offsets of messages that were acknowledged."""
    with Producer(to.broker) as producer:
        answers = [producer.send(body=body) for body in bodies]
    assert {each.code for each in answers} == {ResponseCode.SUCCESS}, [each.remark for each in answers]
    return [int(each.ext["queueOffset"]) for each in answers]


def bodies(of: Member) -> list[bytes]:
    return [each.body for each in stored(of.broker)]


def tail_of(of: Member, offset: int) -> bytes:
    found = of.broker.parts.local.log_bytes(offset, 1 << 20)
    if found is None:
        return b""
    with found:
        return bytes(found.data)


def in_sync(of: Member, *ids: int) -> None:
    until(lambda: of.election.decision.members == frozenset(ids))


def test_roles_change_and_every_message_stays_at_its_offset(tmp_path: Path) -> None:
    with member(tmp_path, 1) as first, member(tmp_path, 2) as second:
        first.lead(1)
        second.follow(first)
        in_sync(first, 1, 2)
        assert send(first, b"0", b"1") == [0, 1]
        address = first.keeper.address

        first.follow(second)
        second.lead(2)
        first.follow(second)
        assert send(second, b"2") == [2], "numbers go on"
        in_sync(second, 1, 2)
        assert send(second, b"3") == [3]

        second.follow(first)
        first.lead(3)
        second.follow(first)
        in_sync(first, 1, 2)
        assert send(first, b"4") == [4]
        assert first.keeper.address == address, "the ports stay"
        assert bodies(first) == [b"0", b"1", b"2", b"3", b"4"]
        until(lambda: bodies(second) == [b"0", b"1", b"2", b"3", b"4"])
        assert cut_tails(tmp_path / "replica1") == cut_tails(tmp_path / "replica2") == []


def test_a_replaced_master_loses_its_own_tail_and_keeps_it_aside(tmp_path: Path) -> None:
    with member(tmp_path, 1) as first, member(tmp_path, 2) as second:
        first.lead(1)
        second.follow(first)
        in_sync(first, 1, 2)
        send(first, b"both")
        first.election.records = False  # The election is not there to record a smaller set.
        second.lead(2)
        begin = second.broker.replication.epochs[-1].start
        with Producer(first.broker) as producer:
            producer.client.oneway(send_command(body=b"only the first"))
            until(lambda: b"only the first" in tail_of(first, begin))
        end = first.broker.parts.local.max_physical_offset
        assert [each.body for each in first.broker.parts.local.get("T", 0, 0).messages] == [b"both"], "not shown either"
        assert send(second, b"second") == [1]

        first.follow(second)
        in_sync(second, 1, 2)
        until(lambda: bodies(first) == [b"both", b"second"])
        [tail] = cut_tails(tmp_path / "replica1")
        assert (tail.epoch, tail.begin, tail.end) == (1, begin, end)
        assert b"only the first" in Path(tail.path).read_bytes()


def test_a_slave_shows_nothing_that_its_next_master_may_cut(tmp_path: Path) -> None:
    """Not a master that was replaced, and not one whose process is another one by now."""
    reads = {"slave_read_enable": True}
    with member(tmp_path, 2, **reads) as second:
        with member(tmp_path, 1, **reads) as first:
            first.lead(1)
            second.follow(first)
            in_sync(first, 1, 2)
            send(first, b"both")
            first.election.records = False  # The election is not there to record a smaller set.
            second.lead(2)
            begin = second.broker.replication.epochs[-1].start
            with Producer(first.broker) as producer:
                producer.client.oneway(send_command(body=b"only the first"))
                until(lambda: b"only the first" in tail_of(first, begin))
            first.election.decide(Decision(replica_id=1))
            until(lambda: first.keeper.decision is not None and first.keeper.decision.role is Role.NONE)
            _shows_nothing(first, begin)
        with member(tmp_path, 1, **reads) as first:
            _shows_nothing(first, begin)
            first.follow(second)
            in_sync(second, 1, 2)
            until(lambda: pull(first.broker).code == ResponseCode.SUCCESS)
            assert [each.body for each in decode_records(pull(first.broker).body)] == [b"both"]
            assert ask(first.broker, RequestCode.VIEW_MESSAGE_BY_ID, offset="0").code == ResponseCode.SUCCESS


def _shows_nothing(of: Member, tail: int) -> None:
    answer = pull(of.broker)
    assert (answer.code, answer.body) == (ResponseCode.PULL_RETRY_IMMEDIATELY, b"")
    assert "may have messages that its master lacks" in (answer.remark or "")
    requests: tuple[tuple[RequestCode, dict[str, Any]], ...] = (
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(tail)}),
        (
            RequestCode.QUERY_MESSAGE,
            {"topic": "T", "key": "K", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"},
        ),
    )
    for code, fields in requests:
        answer = ask(of.broker, code, **fields)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, answer


def test_nothing_is_answered_by_a_master_that_may_not_acknowledge(tmp_path: Path) -> None:
    with member(tmp_path, 1) as first:
        first.lead(1)
        send(first, b"0")
        with Producer(first.broker) as producer:
            first.election.is_valid = False
            answer = producer.send(body=b"1")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "not known to be the master" in (answer.remark or "")
            first.election.is_valid = True
            assert producer.send(body=b"2").code == ResponseCode.SUCCESS
        assert bodies(first) == [b"0", b"2"], "what was refused is not stored"


def test_an_answer_is_dropped_when_the_right_to_acknowledge_ends_before_it_leaves(tmp_path: Path) -> None:
    with member(tmp_path, 1, in_sync_replicas=2) as first, member(tmp_path, 2, in_sync_replicas=2) as second:
        first.lead(1)
        second.follow(first)
        in_sync(first, 1, 2)
        send(first, b"0")
        slave = second.broker.replication.slave
        assert slave is not None
        first.election.records = False
        slave.set_master("")
        with Producer(first.broker) as producer:
            seen: list[BaseException | int] = []

            def ask() -> None:
                try:
                    seen.append(int(producer.send(body=b"1").code))
                except RemotingError as error:
                    seen.append(error)

            asking = threading.Thread(target=ask)
            asking.start()
            until(lambda: first.broker.parts.local.max_physical_offset > second.broker.parts.local.max_physical_offset)
            first.election.is_valid = False
            second.follow(first)
            slave.set_master(first.keeper.ha_address)
            asking.join()
        [found] = seen
        assert isinstance(found, RemotingError), "the connection was closed without an answer"


def test_with_two_needed_a_lone_master_stores_and_does_not_confirm(tmp_path: Path) -> None:
    with member(tmp_path, 1, in_sync_replicas=2) as first, member(tmp_path, 2) as second:
        first.lead(1)
        with Producer(first.broker) as producer:
            assert producer.send(body=b"0").code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert bodies(first) == []
        second.follow(first)
        in_sync(first, 1, 2)
        until(lambda: bodies(first) == [b"0"])


def test_a_replica_that_goes_away_leaves_the_set_and_sends_go_on(tmp_path: Path) -> None:
    with member(tmp_path, 1) as first:
        with member(tmp_path, 2) as second:
            first.lead(1)
            second.follow(first)
            in_sync(first, 1, 2)
        in_sync(first, 1)
        assert send(first, b"alone") == [0]


def test_the_name_server_gives_the_master_id_to_the_newer_epoch(tmp_path: Path) -> None:
    with NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0)) as names:
        place = {"namesrv_addr": f"127.0.0.1:{names.port}", "register_name_server_period": 100}
        with member(tmp_path, 1, **place) as first, member(tmp_path, 2, **place) as second:
            first.lead(1)
            second.follow(first)
            until(lambda: _addresses(names) == {0: first.keeper.address, 2: second.keeper.address})
            second.lead(2)  # The first still believes that it is the master, and registers as such.
            until(lambda: _addresses(names).get(0) == second.keeper.address)
            registration = first.broker.registration
            assert registration is not None
            before = registration.status()[0]
            until(lambda: (now := registration.status()[0]).accepted_count + now.failed_count
                  > before.accepted_count + before.failed_count + 2)  # fmt: skip
            assert _addresses(names)[0] == second.keeper.address
            first.follow(second)
            until(lambda: _addresses(names) == {0: second.keeper.address, 1: first.keeper.address})


def test_the_name_server_has_a_master_only_once_it_may_acknowledge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else clients find a master that refuses them, and use up their tries."""
    with (
        NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0)) as names,
        member(tmp_path, 1, namesrv_addr=f"127.0.0.1:{names.port}") as first,
    ):
        asked = threading.Semaphore(0)

        def refuses(_epoch: int) -> bool:
            asked.release()
            return False

        with monkeypatch.context() as patch:
            patch.setattr(first.election, "may_acknowledge", refuses)
            first.lead(1)
            for _ in range(10):
                asked.acquire()
            assert _addresses(names) == {}
            assert not first.keeper.status()["mayAcknowledge"]
        until(lambda: _addresses(names) == {0: first.keeper.address})
        assert first.keeper.status()["mayAcknowledge"]
        assert send(first, b"0") == [0]


def _addresses(names: NameServer) -> dict[int, str]:
    with BlockingClient("127.0.0.1", names.port) as client:
        answer = client.request(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
    found = decode_object(answer.body)["brokerAddrTable"].get("b1", {"brokerAddrs": {}})
    return {int(key): str(value) for key, value in found["brokerAddrs"].items()}


def test_of_two_handovers_at_once_one_is_refused_and_the_master_answers_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with member(tmp_path, 1) as first, member(tmp_path, 2) as second:
        first.lead(1)
        second.follow(first)
        in_sync(first, 1, 2)
        send(first, b"0")
        goes_on = [threading.Event(), threading.Event()]
        entered: list[int] = []

        def silent(*_values: object) -> int:
            entered.append(len(entered))
            goes_on[entered[-1]].wait()
            raise RequestRefused("the successor does not answer")

        monkeypatch.setattr(first.keeper, "_with_tables", silent)
        refusals: list[str] = []

        def demote() -> None:
            with pytest.raises(RequestRefused) as refused:
                first.keeper.demote(2, 600.0)
            refusals.append(str(refused.value))

        handovers = [threading.Thread(target=demote) for _ in goes_on]
        handovers[0].start()
        until(lambda: entered)
        handovers[1].start()
        until(lambda: len(entered) + len(refusals) == 2)
        for handover, event in zip(handovers, goes_on, strict=True):
            event.set()
            handover.join()
        assert "another one under way" in refusals[0]
        assert send(first, b"1") == [1], "it remains the master"


def test_a_master_that_cannot_be_opened_lets_another_replica_take_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with member(tmp_path, 1) as first:
        resigned: list[int] = []

        def resign(successor: int) -> None:
            resigned.append(successor)
            first.election.decide(Decision(replica_id=1))

        def failing(config: BrokerConfig, elected: Elected) -> Broker:
            if elected.decision.role is Role.MASTER:
                raise OSError("no space left on device")
            return opens(config, elected)

        opens = first.keeper._open_broker
        monkeypatch.setattr(first.election, "resign", resign)
        monkeypatch.setattr(first.keeper, "_open_broker", failing)
        first.election.decide(Decision(role=Role.MASTER, epoch=1, replica_id=1, members=frozenset((1,))))
        until(lambda: resigned == [0])
        until(lambda: first.keeper.broker is not None and first.keeper.problem == "")


def test_a_broker_that_cannot_be_opened_is_tried_again(tmp_path: Path) -> None:
    with member(tmp_path, 1) as first:
        opens = first.keeper._open_broker
        failures = [OSError("no"), OSError("no")]

        def failing(*values: object) -> object:
            if failures:
                raise failures.pop()
            return opens(*values)  # type: ignore[arg-type]

        first.keeper._open_broker = failing  # type: ignore[assignment]
        first.lead(1)
        assert not failures
        assert send(first, b"0") == [0]


def test_a_slave_copies_nothing_from_another_broker_that_has_its_masters_address(tmp_path: Path) -> None:
    with member(tmp_path, 1, broker_name="y") as other, member(tmp_path, 2, broker_name="x") as slave:
        other.lead(1)
        send(other, b"of y")
        slave.follow(other)  # As the lease of x still has it: its master died, and y was started at its ports.
        until(lambda: "another broker has the address" in slave.broker.replication.problem)
        assert slave.broker.parts.local.max_physical_offset == 0
        assert other.election.proposed == [], "nothing was reported to it"


def test_a_log_whose_election_was_lost_is_neither_cut_nor_mixed_with_another_of_the_same_epoch(tmp_path: Path) -> None:
    with member(tmp_path, 1) as old:
        old.lead(1)
        send(old, *(b"old %d" % number for number in range(20)))
        end = old.broker.parts.local.max_physical_offset
    with member(tmp_path, 2) as new, member(tmp_path, 1) as old:
        new.lead(1)  # The lease was lost, and an empty replica came first.
        send(new, b"new")
        old.follow(new)
        until(lambda: "of epoch 1 another master's bytes" in old.broker.replication.problem)
        assert old.broker.parts.local.max_physical_offset == end
        assert cut_tails(tmp_path / "replica1") == []
        assert new.election.proposed == []


def test_slaves_learn_the_terms_of_their_master_and_follow_the_next_one(tmp_path: Path) -> None:
    with member(tmp_path, 1) as first, member(tmp_path, 2) as second:
        first.lead(1)
        second.follow(first)
        in_sync(first, 1, 2)
        send(first, b"0")
        second.lead(2)
        first.follow(second)
        in_sync(second, 1, 2)
        send(second, b"1")
        terms = dict(second.broker.replication.terms)
        assert set(terms) == {1, 2}
        assert dict(first.broker.replication.terms) == terms


def test_a_master_reopened_in_its_epoch_shows_nothing_that_another_of_its_set_lacks(tmp_path: Path) -> None:
    with member(tmp_path, 1) as first:
        with member(tmp_path, 2) as second:
            first.lead(1)
            second.follow(first)
            in_sync(first, 1, 2)
            send(first, b"both")
            first.election.records = False  # The election is not there to record a smaller set.
        end = first.broker.parts.local.max_physical_offset
        with Producer(first.broker) as producer:
            producer.client.oneway(send_command(body=b"only the first"))
            until(lambda: first.broker.parts.local.max_physical_offset > end)
        decided = first.election.decision
        assert decided.members == {1, 2}
    with member(tmp_path, 1) as again, member(tmp_path, 2) as second:
        again.election.records = False
        again.election.decide(replace(decided, address=again.keeper.address, ha_address=again.keeper.ha_address))
        until(lambda: again.keeper.decision is not None and again.keeper.decision.epoch == 1)
        with Peer(again.broker) as consumer:
            answer = consumer.pull(1)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "lacks a part of its log" in (answer.remark or "")
            second.follow(again)  # It has the rest now, and everything is committed.
            until(lambda: again.broker.replication.is_settled)
        assert bodies(again) == [b"both", b"only the first"]


def test_a_master_that_ends_at_once_uploads_what_it_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "SETTLED_LOOK_S", 3600.0)  # It ends before it looks whether uploads may begin.
    tier = {"tier": (tmp_path / "tier").as_uri(), "tier_close_timeout": 300_000}
    with member(tmp_path, 1, **tier) as only:
        only.lead(1)
        send(only, b"0")
        both = replace(only.election.decision, epoch=2, members=frozenset((1, 2)))
        only.election.records = False
        only.election.decide(both)
        until(lambda: only.keeper.decision == both)
        assert isinstance(only.broker.store, TieredStore)
        assert only.broker.store.tier.engine.paused, "replica 2 may lack a part of its log"
        recordings = count(1)  # The number of what the master has proposed meanwhile depends on its threads.

        def is_settled() -> bool:
            only.election.decide(replace(both, members=frozenset((1,)), recording=next(recordings)))
            return only.broker.replication.is_settled

        until(is_settled)
        send(only, b"1")
        assert only.broker.store.tier.engine.paused, "it has not looked again"
    assert only.keeper.last is not None
    assert only.keeper.last.not_uploaded == NotUploaded()


def test_an_elected_master_is_not_followed_by_an_observer(tmp_path: Path) -> None:
    with member(tmp_path, 1) as first:
        first.lead(1)
        place = ("--master", first.keeper.ha_address, "--master-address", first.keeper.address)
        result = CliRunner().invoke(cli, ["follow", str(tmp_path / "f"), *place, "--tier", (tmp_path / "t").as_uri()])
        assert result.exit_code == 2
        assert "found a replica of `tiermq serve --standby`" in result.output
