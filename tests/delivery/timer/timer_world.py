"""A store with timers on a simulated disk, at a clock that the test moves."""

from __future__ import annotations

from typing import Any

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from small_store import ROOT, on_simulation, read_all
from tiermq import Message, PutResult
from tiermq.delivery.timer.timer_destination import TimerDestination
from tiermq.delivery.timer.timer_record import TieredTimers
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.delivery.timer.timer_state import TimerSettings
from tiermq.message.properties import encode_properties
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import TIMER_TOPIC
from tiermq.store.local_store import LocalStore

NOW_MS = 1_700_000_000_000
SMALL = TimerSettings(slots=600, log_file_bytes=4096, roll_window_slots=100, max_delay_s=3 * 24 * 3600)


class TimerWorld:
    """See the module. `stop` and `start` are a restart; `crashed` goes on with what a crash left."""

    def __init__(
        self,
        access: SimulatedFileAccess | None = None,
        clock: Any = None,
        *,
        settings: TimerSettings = SMALL,
        far: TieredTimers | None = None,
        **store_settings: Any,
    ) -> None:
        self.clock: Any = clock or ManualClock(NOW_MS)
        self.access = access or SimulatedFileAccess(clock=self.clock)
        self.settings = settings
        self.far = far
        self._store_settings = store_settings
        self.start()

    def start(self, settings: TimerSettings | None = None) -> None:
        self.settings = settings or self.settings
        self.store: LocalStore = on_simulation(self.access, clock=self.clock, **self._store_settings)
        self.timers = TimerService(self.store, ROOT, self.clock, self.settings, self.access, self.far)

    def stop(self) -> None:
        self.timers.finish()
        self.timers.close()
        self.store.close()

    def restart(self, settings: TimerSettings | None = None) -> None:
        self.stop()
        self.start(settings)

    def crashed(self, after: SimulatedFileAccess, *, settings: TimerSettings | None = None) -> TimerWorld:
        return TimerWorld(after, self.clock, settings=settings or self.settings, far=self.far, **self._store_settings)

    # Putting

    def send(self, body: bytes, delay_ms: int = 0, *, deliver_ms: int = 0, topic: str = "T", **more: str) -> PutResult:
        """Put a timer, due after a delay or at a time, and let the timer topic have it."""
        asked = {"TIMER_DELIVER_MS": str(deliver_ms)} if deliver_ms else {"TIMER_DELAY_MS": str(delay_ms)}
        properties = encode_properties({"UNIQ_KEY": f"K-{body.decode()}", **asked, **more})
        place = self.timers.place(topic, 0, properties)
        assert isinstance(place, TimerDestination), place
        result = self.store.put(Message(place.topic, body, place.queue_id, encoded_properties=place.properties))
        assert result.ok
        self.store.dispatch_now()
        return result

    # Time

    def turn(self) -> None:
        """Everything that can be done now."""
        while self.timers.run_once() == 0.0 or self.store.dispatch_now():
            pass

    def wait(self, ms: int, step_ms: int = 1_000) -> None:
        """Let time pass, step by step."""
        end_ms = self.clock.now_ms() + ms
        while self.clock.now_ms() < end_ms:
            self.clock.set_ms(min(end_ms, self.clock.now_ms() + step_ms))
            self.turn()

    # Looking

    def messages(self, topic: str = "T") -> list[StoredMessage]:
        return read_all(self.store, topic)

    def bodies(self, topic: str = "T") -> list[bytes]:
        return [message.body for message in self.messages(topic)]

    def in_timer_topic(self) -> list[StoredMessage]:
        return read_all(self.store, TIMER_TOPIC)
