"""Who still uses a file, and when it may go."""

from __future__ import annotations

import pytest

from tiermq.errors import IllegalTransition
from tiermq.files.mapped_file import References, ReferenceState


def state_of(references: References) -> ReferenceState:
    """The state now: a type checker takes an attribute for the same until it is assigned."""
    return references.state


def test_a_file_without_holders_drains_at_the_first_shutdown() -> None:
    references = References()
    assert references.shutdown(now_ms=0, interval_ms=1000) is True
    assert (references.state, references.count) == (ReferenceState.DRAINED, 0)
    assert references.hold() is False
    assert references.pin() is False


def test_a_held_file_drains_with_its_last_release() -> None:
    references = References()
    assert references.hold()
    assert references.shutdown(now_ms=0, interval_ms=1000) is False
    assert state_of(references) is ReferenceState.DRAINING
    assert references.hold() is False
    assert references.pin() is True
    assert references.release() is False
    assert references.release() is True
    assert state_of(references) is ReferenceState.DRAINED


def test_the_first_shutdown_never_forces_and_a_later_one_forces_after_the_interval() -> None:
    references = References()
    references.hold()
    references.shutdown(now_ms=5000, interval_ms=0)
    assert state_of(references) is ReferenceState.DRAINING
    references.shutdown(now_ms=5999, interval_ms=1000)
    assert state_of(references) is ReferenceState.DRAINING
    references.shutdown(now_ms=6000, interval_ms=1000)
    assert state_of(references) is ReferenceState.FORCED
    assert references.release() is True
    assert state_of(references) is ReferenceState.DRAINED


@pytest.mark.parametrize("shut_down_first", [False, True])
def test_a_release_too_many_is_refused(shut_down_first: bool) -> None:
    references = References()
    references.hold()
    if shut_down_first:
        references.shutdown(0, 0)
    references.release()
    with pytest.raises(IllegalTransition, match="expected a reference to release"):
        references.release()
