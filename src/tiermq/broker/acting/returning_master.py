"""ReturningMaster: a master that starts takes over what slaves did for it, before clients find it.

    members by the name server ─► each slave: 907 the end of its log ─► 906 "I am your master": it stops acting
                                              43 offsets, 45 delay levels, 60 timers: the greater value counts
    ─► registered, deliveries begin ─► heartbeats

Until then it is not registered and delivers nothing, so nothing is delivered twice; what a slave's log did not have is
delivered here, so nothing is lost. A slave that does not answer is asked again, until it does or the name server drops
it. Threads: `run_once` is the service's own.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from tiermq.broker.acting.member_group import MemberGroup
from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.delivery.delivery_services import DeliveryServices
from tiermq.broker.group.consumer_offsets import decode_offsets
from tiermq.delivery.timer.timer_checkpoint import decode_progress
from tiermq.errors import RemotingError, TierMQError
from tiermq.namesrv.route_table import MASTER_ID
from tiermq.remoting.client import BlockingClient, parse_name_servers
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object, int64_in, object_in
from tiermq.service import Service
from tiermq.store.delay_offsets import decode_delay_offsets

_log = logging.getLogger(__name__)

TAKE_OVER_AGAIN_S = 1.0
ANNOUNCED_S = 30.0
"""How long a slave may take to stop acting."""


class ReturningMaster(Service):
    """See the module."""

    def __init__(
        self, parts: BrokerContext, delivery: DeliveryServices, group: MemberGroup, go_online: Callable[[], None]
    ) -> None:
        """`go_online` registers the broker and starts its services."""
        super().__init__("returning-master")
        self.problem = "it has not asked its slaves yet"
        """Why it is not registered, as text; empty once it is."""
        self._parts = parts
        self._delivery = delivery
        self._group = group
        self._go_online = go_online

    def run_once(self) -> float:
        is_online = not self.problem
        members = self._group.look(beats=is_online)
        if is_online:
            return self._parts.config.broker_heartbeat_interval / 1000
        try:
            if members is None:
                raise RemotingError(f"no name server gives the members of this broker's set: {self._group.problem}")
            if not self._parts.config.skip_pre_online:
                self._take_over(members)
        except (OSError, TierMQError) as error:
            if str(error) != self.problem:
                _log.warning("this master is not registered yet: %s", error)
            self.problem = str(error)
            return TAKE_OVER_AGAIN_S
        self.problem = ""
        self._go_online()
        return 0.0

    def _take_over(self, members: dict[int, str]) -> None:
        for broker_id, address in sorted(members.items()):
            if broker_id != MASTER_ID and address != self._group.address:
                self._take_from(broker_id, address)
        self._parts.offsets.flush()

    def _take_from(self, broker_id: int, address: str) -> None:
        [(host, port)] = parse_name_servers(address)
        with contextlib.closing(self._parts.ask_name_server(host, port)) as client:
            status = decode_object(_asked(client, RequestCode.GET_BROKER_HA_STATUS).body)
            runtime = object_in(status.get("haClientRuntimeInfo") or {}, "haClientRuntimeInfo")
            end = int64_in(runtime, "maxOffset")
            if not self._announce(client):
                _log.info("slave %d at %s does not act for its master", broker_id, address)
                return
            offsets = _asked(client, RequestCode.GET_ALL_CONSUMER_OFFSET, may_lack=True).body
            delays = _asked(client, RequestCode.GET_ALL_DELAY_OFFSET, may_lack=True).body
            timers = _asked(client, RequestCode.GET_TIMER_CHECK_POINT, may_lack=True).body
        if offsets:
            self._parts.offsets.take_greater(decode_offsets(bytes(offsets))[0])
        if delays:
            self._delivery.delay_levels.take_greater(decode_delay_offsets(bytes(delays))[0])
        if timers and self._delivery.timers is not None:
            self._delivery.timers.take_over(decode_progress(bytes(timers)).read_time_ms, end)
        _log.info("took over from slave %d at %s, whose log ends at %d", broker_id, address, end)

    def _announce(self, client: BlockingClient) -> bool:
        """False for a slave that does not know such requests: it never acted."""
        ext = {
            "masterAddress": self._group.address,
            "masterFlushOffset": str(self._parts.local.max_physical_offset),
            "masterHaAddress": self._parts.replication.ha_address,
        }
        answer = client.request(RemotingCommand(RequestCode.EXCHANGE_BROKER_HA_INFO, ext=ext), ANNOUNCED_S)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return False
        _require(answer, RequestCode.EXCHANGE_BROKER_HA_INFO)
        return True

    def finish(self) -> None:
        self._group.close()


def _asked(client: BlockingClient, code: int, *, may_lack: bool = False) -> RemotingCommand:
    answer = client.request(RemotingCommand(code))
    if may_lack and answer.code == ResponseCode.SYSTEM_ERROR and not answer.body:
        return RemotingCommand(code)
    _require(answer, code)
    return answer


def _require(answer: RemotingCommand, code: int) -> None:
    if answer.code != ResponseCode.SUCCESS:
        raise RemotingError(f"a slave: expected an answer to {code}, found {int(answer.code)}: {answer.remark}")
