"""FarTimerService: the thread that keeps far timers in order in the tier (`TierTimers.tend`)."""

from __future__ import annotations

import logging

from tiermq.delivery.far.tier_timers import TierTimers
from tiermq.errors import TierError
from tiermq.service import Service

_log = logging.getLogger(__name__)

REST_S = 5.0
REST_AFTER_REFUSAL_S = 30.0


class FarTimerService(Service):
    """One round after the other; a tier that is down or another's is asked again later."""

    def __init__(self, timers: TierTimers) -> None:
        super().__init__("far-timers")
        self.timers = timers
        self.refusal = ""

    def run_once(self) -> float:
        try:
            more = self.timers.tend()
        except TierError as error:
            if str(error) != self.refusal:
                _log.warning("far timers are not tended now: %s", error)
            self.refusal = str(error)
            return REST_AFTER_REFUSAL_S
        self.refusal = ""
        return 0.0 if more else REST_S
