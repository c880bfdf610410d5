"""Service: a thread that works until it is stopped, whatever its rounds do."""

from __future__ import annotations

import threading

import pytest

from tiermq import service as service_module
from tiermq.service import Service


class Counting(Service):
    """Counts its rounds, fails in the ones it is asked to, and notifies a waiting test."""

    def __init__(self, fails_in: tuple[int, ...] = (), rest_s: float = 3600.0, finish_fails: bool = False) -> None:
        super().__init__("counting")
        self.rounds = 0
        self.finished = 0
        self.rest_s = rest_s
        self._fails_in = fails_in
        self._finish_fails = finish_fails
        self._moved = threading.Condition()

    def run_once(self) -> float:
        with self._moved:
            self.rounds += 1
            self._moved.notify_all()
        if self.rounds in self._fails_in:
            raise ValueError(f"round {self.rounds}")
        return self.rest_s

    def finish(self) -> None:
        self.finished += 1
        if self._finish_fails:
            raise OSError("finish")

    def wait_for_round(self, number: int) -> None:
        with self._moved:
            assert self._moved.wait_for(lambda: self.rounds >= number, 60)


def test_a_service_works_at_once_and_then_when_it_is_woken() -> None:
    service = Counting()
    running = [service.running]
    service.start()
    service.wait_for_round(1)
    assert [*running, service.running] == [False, True]
    service.wake()
    service.wait_for_round(2)
    service.stop()
    assert (service.running, service.stopping, service.finished) == (False, True, 1)


def test_a_service_that_returns_zero_goes_on_without_a_rest() -> None:
    service = Counting(rest_s=0.0)
    service.start()
    service.wait_for_round(100)
    service.stop()


def test_a_round_that_fails_is_counted_kept_and_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "REST_AFTER_ERROR_S", 0.0)
    service = Counting(fails_in=(1, 3), rest_s=0.0)
    service.start()
    service.wait_for_round(5)
    service.stop()
    assert service.error_count == 2
    assert str(service.last_error) == "round 3"
    assert service.finished == 1


def test_a_failure_to_finish_is_counted_and_the_thread_ends() -> None:
    service = Counting(finish_fails=True)
    service.start()
    service.stop()
    assert (service.error_count, service.running) == (1, False)


def test_stopping_a_service_that_never_ran_does_nothing() -> None:
    service = Counting()
    service.stop()
    assert (service.rounds, service.finished) == (0, 0)


def test_a_service_that_does_nothing_is_no_service() -> None:
    with pytest.raises(NotImplementedError):
        Service("nothing").run_once()


def test_a_service_s_thread_has_its_name_and_does_not_keep_the_process_alive() -> None:
    service = Counting()
    service.start()
    thread = next(thread for thread in threading.enumerate() if thread.name == "counting")
    assert thread.daemon
    service.stop()
