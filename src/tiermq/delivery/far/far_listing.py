"""Far timers one by one, as operators want to see them: which message waits for when. Read from the tier alone.

Every object is read twice, first for cancellations; memory is for their keys. What is known to be delivered is left
out; what was pulled into a broker's wheel and is not delivered yet is told.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiermq.delivery.far.timer_survey import TimerSurvey, timers_of
from tiermq.delivery.timer.far_timers import FarTimer
from tiermq.delivery.timer.timer_listing import WaitingTimer, described
from tiermq.delivery.timer.timer_record import cancel_key, own_key
from tiermq.errors import CorruptRecord
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.tier.driver.contract import TierDriver

PRECISION_MS = 1_000


def waiting_in_tier(
    driver: TierDriver, survey: TimerSurvey, now_ms: int, precision_ms: int = PRECISION_MS
) -> Iterator[WaitingTimer]:
    """What waits in a broker's tier and was not cancelled, object by object.

    Damaged timers are passed over: `verify_timers` tells of them. Raises CorruptTimers for an object that cannot be
    read at all, and what the driver raises.
    """
    cancelled = {
        (deliver_ms, cancel_key(message)) for deliver_ms, is_delete, message in _messages(driver, survey) if is_delete
    }
    for deliver_ms, is_delete, message in _messages(driver, survey):
        key = own_key(message)
        if is_delete or deliver_ms + precision_ms <= now_ms or (key is not None and (deliver_ms, key) in cancelled):
            continue
        yield described(message, precision_ms)


def _messages(driver: TierDriver, survey: TimerSurvey) -> Iterator[tuple[int, bool, StoredMessage]]:
    for timer in timers_of(driver, survey):
        if isinstance(timer, FarTimer):
            try:
                yield timer.deliver_ms, timer.is_delete, decode_record(timer.record)
            except CorruptRecord:
                continue  # A record that was damaged before it came here; the wheel passes it over, too.
