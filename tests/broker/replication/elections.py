"""An election by hand, and brokers whose roles it gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker.brokers import SMALL, broker_config
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.elected_broker import ElectedBroker
from tiermq.broker.replication.replication import Elected
from tiermq.config import StoreConfig
from tiermq.replication.election import Candidate, Decision, Loss, Role
from waiting import until


class ElectionByHand:
    """One replica's view. Tests decide; what is proposed is recorded at once, unless `records` is False."""

    def __init__(self, replica_id: int) -> None:
        self.decision = Decision(replica_id=replica_id)
        self.candidate: Candidate | None = None
        self.proposed: list[frozenset[int]] = []
        self.loss: Loss | None = None
        self.is_valid = True
        self.records = True

    def join(self) -> int:
        return self.decision.replica_id

    def start(self, candidate: Candidate) -> None:
        self.candidate = candidate

    def stop(self) -> None:
        self.is_valid = False

    def may_acknowledge(self, epoch: int) -> bool:
        return self.is_valid and epoch == self.decision.epoch

    def knows(self, replica_id: int) -> bool:
        return replica_id > 0

    def resign(self, successor: int) -> None:
        raise AssertionError(f"not by hand: {successor}")

    def accept_loss(self) -> None:
        raise AssertionError("not by hand")

    def look_soon(self) -> None:
        """Tests decide when."""

    def addresses(self) -> dict[int, str]:
        return {}

    def status(self) -> dict[str, object]:
        return {"kind": "hand"}

    def propose(self, epoch: int, number: int, members: frozenset[int]) -> None:
        self.proposed.append(members)
        if self.records and epoch == self.decision.epoch:
            self.decide(replace(self.decision, members=members, recording=number))

    def decide(self, decision: Decision) -> None:
        self.decision = decision
        assert self.candidate is not None
        self.candidate.on_change(decision)


class Member:
    """A replica: its election and its broker."""

    def __init__(self, path: Path, replica_id: int, **settings: Any) -> None:
        self.election = ElectionByHand(replica_id)
        self.store = {"store_path_root_dir": str(path / f"replica{replica_id}"), **SMALL}
        of_store = ("flush_disk_type", "tier", "tier_close_timeout")
        self.store.update({name: settings.pop(name) for name in list(settings) if name in of_store})
        config = broker_config(**{"ha_listen_port": 0, "master_sync_interval": 50, **settings})
        local = {name: value for name, value in self.store.items() if not name.startswith("tier")}
        self.keeper = ElectedBroker(self.election, config, StoreConfig(**local), self._open)

    def _open(self, config: BrokerConfig, elected: Elected) -> Broker:
        settings = {name: value for name, value in self.store.items() if name != "store_path_root_dir"}
        root = self.store["store_path_root_dir"]
        return Broker.open(root, config=config, elected=elected, slave_timeout=600_000, **settings)

    @property
    def broker(self) -> Broker:
        found = self.keeper.broker
        assert found is not None
        return found

    def lead(self, epoch: int) -> None:
        """Become the master, and wait until that is done."""
        own = self.election.decision.replica_id
        self.election.is_valid = True
        self.election.decide(
            Decision(
                role=Role.MASTER,
                epoch=epoch,
                replica_id=own,
                address=self.keeper.address,
                ha_address=self.keeper.ha_address,
                members=frozenset((own,)),
            )
        )
        until(lambda: self.keeper.decision is not None and self.keeper.decision.epoch == epoch)

    def follow(self, master: Member) -> None:
        decided = master.election.decision
        self.election.decide(
            replace(decided, role=Role.SLAVE, replica_id=self.election.decision.replica_id, members=frozenset())
        )
        until(lambda: self.keeper.decision == self.election.decision)


@contextmanager
def member(path: Path, replica_id: int, **settings: Any) -> Iterator[Member]:
    made = Member(path, replica_id, **settings)
    made.keeper.start()
    try:
        yield made
    finally:
        made.keeper.stop()
