"""The network parts in small form: the proxy does what it says, and broken promises are found."""

from __future__ import annotations

import random
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from campaign.networks import clients, name_servers
from campaign.networks.buckets import TRIES_MAX, ask_again
from campaign.networks.clients import ClientsPart
from campaign.networks.faults import Fault, Step, apply, schedule, shortest
from campaign.networks.name_servers import NameServersPart
from campaign.networks.part import PARTS
from campaign.networks.pipelines import is_met
from campaign.networks.proxy import CLEAR, Proxy, Weather
from campaign.networks.traffic import Ledger, judge
from campaign.part import Finding, Outcome
from remoting.peers import ECHO, ECHO_BLOCKING, RawPeer, make_server, serving
from tiermq.broker.topic.broker_registration import BrokerRegistration
from tiermq.errors import CorruptSegment, TierUnavailable
from tiermq.remoting.command import RemotingCommand
from waiting import until


def test_a_clear_proxy_passes_everything_on() -> None:
    with serving(make_server()) as running, Proxy("127.0.0.1", running.port) as proxy, RawPeer(proxy.port) as peer:
        peer.send(RemotingCommand(ECHO_BLOCKING, body=bytes(200_000)))
        assert len(peer.read().body) == 200_000
        assert proxy.open_links == 1


def test_what_was_held_comes_when_it_is_let_go() -> None:
    with serving(make_server()) as running, Proxy("127.0.0.1", running.port) as proxy, RawPeer(proxy.port) as peer:
        peer.send(RemotingCommand(ECHO, opaque=1))
        assert peer.read().opaque == 1
        proxy.set(Weather(hold_up=True, hold_down=True))
        peer.send(RemotingCommand(ECHO, opaque=2))
        proxy.set(CLEAR)
        assert peer.read().opaque == 2


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.REFUSE, Fault.CUT, Fault.TRUNCATE, Fault.HALF_CLOSE])
def test_a_link_that_is_ended_is_ended_for_both(fault: Fault) -> None:
    with serving(make_server()) as running, Proxy("127.0.0.1", running.port) as proxy, RawPeer(proxy.port) as peer:
        peer.send(RemotingCommand(ECHO))
        peer.read()
        apply(Step(fault, 5), proxy)
        with pytest.raises((EOFError, ConnectionError)):
            _echo_for_ever(peer)
        while running.server.connections:
            running.thread.call(lambda: None)


def _echo_for_ever(peer: RawPeer) -> None:
    while True:
        peer.send(RemotingCommand(ECHO))
        peer.read()


def test_a_cut_passes_on_exactly_the_bytes_that_were_left() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Proxy("127.0.0.1", server.getsockname()[1]) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as peer,
        server.accept()[0] as other,
    ):
        peer.sendall(b"x")
        assert other.recv(10) == b"x"
        proxy.end_links_after(3, reset=False)
        peer.sendall(b"0123456789")
        found = b""
        while piece := other.recv(10):
            found += piece
        assert found == b"012"


def test_a_schedule_is_known_by_its_seed_and_has_every_fault() -> None:
    assert schedule(random.Random(1), 20) == schedule(random.Random(1), 20)
    assert {step.fault for step in schedule(random.Random(2), 200)} == set(Fault)


def test_the_shortest_schedule_that_fails_is_found() -> None:
    steps = [Step(fault, 0) for fault in Fault]

    def fails(tried: list[Step]) -> Finding | None:
        guilty = {Fault.CUT, Fault.SLOW} <= {step.fault for step in tried}
        return Finding("p", "f", 1) if guilty else None

    found = shortest(steps, fails)
    assert found is not None
    assert [step.split()[0] for step in found.steps] == ["SLOW", "CUT"]


def test_clients_of_a_broker_live_through_a_failing_network(tmp_path: Path) -> None:
    outcome = ClientsPart(producers=2).run(1, tmp_path, [Step(Fault.PARTITION, 0), Step(Fault.CUT, 9)])
    assert outcome.findings == []
    assert outcome.counts["errors_met"] > 0
    assert outcome.counts["messages_checked"] > 0


def test_a_broker_that_forgets_what_it_acknowledged_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = clients._World._stored
    monkeypatch.setattr(
        clients._World, "_stored", lambda world: {place: body for place, body in stored(world).items() if place[1] != 0}
    )
    outcome = ClientsPart(producers=2).run(1, tmp_path, [])
    assert any("acknowledged at" in finding.found for finding in outcome.findings)


def test_doubles_phantoms_and_what_was_not_given_are_reported() -> None:
    ledger = Ledger()
    ledger.acknowledged[b"a"] = (0, 0)
    ledger.attempts[b"a"] = 1
    ledger.seen = {(0, 0): b"a", (0, 1): b"a", (0, 2): b"x"}
    wrong = judge(ledger, {(0, 0): b"a", (0, 1): b"a", (0, 3): b"y", (0, 4): b"z"}, {0: 4})
    assert [text.split(":")[0].split(" at ")[0] for text in wrong] == [
        "stored 2 times, sent 1 times",
        "stored 1 times, sent 0 times",
        "stored 1 times, sent 0 times",
        "seen",
        "stored",
    ]


def test_name_servers_are_notified_over_a_failing_network(tmp_path: Path) -> None:
    outcome = NameServersPart().run(1, tmp_path, [Step(Fault.NO_ANSWERS, 0), Step(Fault.RESET, 0)])
    assert outcome.findings == []
    assert outcome.counts["errors_met"] > 0


def test_a_fault_lasts_until_a_registration_that_began_in_it_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[BrokerRegistration] = []

    def watched(*arguments: Any, **settings: Any) -> BrokerRegistration:
        made.append(BrokerRegistration(*arguments, **settings))
        return made[0]

    def accepted() -> int:
        return made[0].status()[0].accepted_count

    def apply_late(step: Step, proxy: Proxy) -> None:
        before = accepted()
        until(lambda: accepted() != before)
        apply(step, proxy)

    monkeypatch.setattr(name_servers, "BrokerRegistration", watched)
    monkeypatch.setattr(name_servers, "apply", apply_late)
    outcome = NameServersPart().run(1, tmp_path, [Step(Fault.NO_ANSWERS, 0)])
    assert outcome.findings == []
    assert outcome.counts["errors_met"] > 0


@pytest.mark.parametrize(
    ("fault", "short", "enough"),
    [
        (Fault.PARTITION, {"connections": 1, "bytes": 1 << 20}, {"connections": 2}),
        (Fault.REFUSE, {"connections": 5, "bytes": 1 << 20}, {"refused": 1}),
        (Fault.CUT, {"bytes": 1 << 20}, {"cut_in_frame": 1}),
        (Fault.SLOW, {"connections": 1, "bytes": 9_999}, {"bytes": 10_000}),
    ],
)
def test_a_trouble_lasts_until_a_job_has_met_it(fault: Fault, short: dict[str, int], enough: dict[str, int]) -> None:
    assert not is_met(fault, Counter(short))
    assert is_met(fault, Counter(enough))


def test_a_tier_that_is_not_available_is_asked_again_and_not_for_ever() -> None:
    outcome, tried = Outcome(), list[int]()

    def third_time() -> str:
        tried.append(1)
        if len(tried) < 3:
            raise TierUnavailable("a request gave up")
        return "a page"

    assert ask_again(third_time, outcome) == "a page"
    assert outcome.counts["asked_again"] == 2

    def never() -> str:
        raise TierUnavailable("no answer")

    def damaged() -> str:
        raise CorruptSegment("another error is not passed over")

    with pytest.raises(TierUnavailable):
        ask_again(never, outcome)
    assert outcome.counts["asked_again"] == 2 + TRIES_MAX - 1
    with pytest.raises(CorruptSegment):
        ask_again(damaged, outcome)


def test_every_network_part_can_be_named() -> None:
    assert [part.name for part in PARTS] == [
        "network-clients",
        "network-namesrv",
        "network-s3",
        "network-spark",
        "network-java",
    ]
