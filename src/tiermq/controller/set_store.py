"""SetStore: the state of each broker set as one small object in a bucket or a directory, changed by compare-and-set.

    controller.tiermq/<broker name>.tiermq.json

    body: cluster, name, members {id: {address, checkCode}}, nextId, master (0: none), masterEpoch, inSync, setEpoch,
          sequence (of changes), changedBy (the controller that wrote it)

Invariants: an object is replaced only as the version that was read, and never removed; each change has the next
sequence and names its writer, so that two controllers never write equal bytes. A controller that was suspended between
its read and its write therefore loses, reads again and decides again.

Cost: a read is one GET; a change one GET and one PUT; a request that changes nothing one GET. Any thread may call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tiermq.controller.broker_set import BrokerSet, Member, Outcome
from tiermq.errors import BadTierName, ManifestConflict, RequestRefused, TierError
from tiermq.remoting.codes import ResponseCode
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.document import (
    items_field,
    natural_field,
    number_field,
    open_document,
    refuse_document,
    seal_document,
    text_field,
)
from tiermq.tier.names import OBJECT_SUFFIX, check_object_name

_log = logging.getLogger(__name__)

DIRECTORY = "controller.tiermq"
SET_VERSION = 1
NAME_CHARACTERS_MAX = 127
CHANGE_TRIES = 10
REMEDY = "stop the brokers of the set, and restore the last version of the object"


def object_name(broker_name: str) -> str:
    """Where the state of a set is kept. Raises RequestRefused for a name that cannot be one."""
    name = f"{DIRECTORY}/{broker_name}{OBJECT_SUFFIX}"
    try:
        if not 0 < len(broker_name) <= NAME_CHARACTERS_MAX or "/" in broker_name:
            raise BadTierName(f"{len(broker_name)} characters")
        return check_object_name(name)
    except BadTierName as error:
        raise RequestRefused(
            f"expected a brokerName of 1 to {NAME_CHARACTERS_MAX} characters without a slash, found "
            f"{broker_name[:80]!r}: {error}",
            ResponseCode.CONTROLLER_INVALID_REQUEST,
        ) from error


def encode_set(state: BrokerSet, sequence: int, writer: str) -> bytes:
    """The object's bytes."""
    members = {
        str(broker): {"address": each.address, "checkCode": each.check_code} for broker, each in state.members.items()
    }
    body = {
        "changedBy": writer,
        "cluster": state.cluster,
        "inSync": sorted(state.in_sync),
        "master": state.master or 0,
        "masterEpoch": state.master_epoch,
        "members": members,
        "name": state.name,
        "nextId": state.next_id,
        "sequence": sequence,
        "setEpoch": state.set_epoch,
    }
    return seal_document(body, SET_VERSION)


def decode_set(data: bytes, name: str) -> tuple[BrokerSet, int]:
    """The state, and the sequence of its last change. Raises FutureManifest and CorruptManifest."""
    body = open_document(data, name, SET_VERSION, REMEDY)
    try:
        members = {int(broker): _member(each) for broker, each in body["members"].items()}
        state = BrokerSet(
            text_field(body, "name"),
            text_field(body, "cluster"),
            members,
            natural_field(body, "nextId"),
            number_field(body, "master", 0) or None,
            natural_field(body, "masterEpoch"),
            frozenset(map(int, items_field(body, "inSync"))),
            natural_field(body, "setEpoch"),
        )
        if (state.master is not None and state.master not in state.in_sync) or not state.in_sync <= members.keys():
            raise ValueError(f"master {state.master}, SyncStateSet {sorted(state.in_sync)}, brokers {sorted(members)}")
        return state, natural_field(body, "sequence")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        refuse_document(name, f"a body that is no broker set ({error})", REMEDY)


def _member(fields: Any) -> Member:
    return Member(text_field(fields, "address"), text_field(fields, "checkCode"))


class SetStore:
    """See the module."""

    def __init__(self, driver: TierDriver, writer: str) -> None:
        """`writer` names this process among all controllers."""
        self._driver = driver
        self._writer = writer

    def read(self, broker_name: str) -> BrokerSet | None:
        """The state now. Raises RequestRefused where it cannot be read."""
        return self._read(object_name(broker_name))[0]

    def change(self, broker_name: str, decide: Callable[[BrokerSet | None], Outcome]) -> Outcome:
        """Decide on the state and store the next one; again from the start if another controller was faster.

        Raises RequestRefused where the state cannot be read or written, or changes all the time.
        """
        name = object_name(broker_name)
        for _ in range(CHANGE_TRIES):
            before, sequence, version = self._read(name)
            outcome = decide(before)
            if outcome.state is None or outcome.state == before:
                return outcome
            try:
                self._driver.put_object(
                    name, encode_set(outcome.state, sequence + 1, self._writer), expected=version or None
                )
            except ManifestConflict:
                continue
            except TierError as error:
                raise _unavailable(error) from error
            _log.info("broker set %s: %s", broker_name, shown(outcome.state))
            return outcome
        raise RequestRefused(
            f"broker set {broker_name}: its state was changed by other controllers {CHANGE_TRIES} times meanwhile; "
            "try again",
            ResponseCode.SYSTEM_BUSY,
        )

    def _read(self, name: str) -> tuple[BrokerSet | None, int, str]:
        try:
            stored = self._driver.get_object(name)
            if stored is None:
                return None, 0, ""
            return *decode_set(stored.data, name), stored.version
        except TierError as error:
            raise _unavailable(error) from error


def shown(state: BrokerSet) -> str:
    """A state in one line, for logs."""
    return (
        f"master {state.master or 'none'} of epoch {state.master_epoch}, SyncStateSet {sorted(state.in_sync)} of epoch "
        f"{state.set_epoch}, brokers {sorted(state.members)}"
    )


def _unavailable(error: TierError) -> RequestRefused:
    _log.warning("the state of a broker set cannot be used: %s", error)
    return RequestRefused(f"the controller cannot use its state: {error}", ResponseCode.SYSTEM_ERROR)
