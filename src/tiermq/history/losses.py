"""What is lost, told to people: as one error, or as a note, with what can be done about it."""

from __future__ import annotations

from collections.abc import Iterable

from tiermq.errors import DataLoss
from tiermq.history.scan_values import Loss, LossReason
from tiermq.tier.names import QueueKey

SHOWN_MAX = 8
_ADVICE = {
    LossReason.EXPIRED: "Begin at what is left (startingOffsets earliest)",
    LossReason.GAP: "They were gone from the broker's disk before they were copied to the tier",
    LossReason.DELETED: "Leave the topic out, or begin a new checkpoint if it was made anew",
    LossReason.CORRUPT: "'tiermq tier verify' tells what is damaged, and '--repair' restores what still exists locally",
    LossReason.BEYOND_END: "The queue was reset, or the offsets are of another tier: check them, or begin anew",
}


def describe(loss: Loss) -> str:
    """One loss in one line."""
    detail = f" ({loss.detail})" if loss.detail else ""
    count = loss.to_offset - loss.from_offset
    what = (
        f"{count} messages, offsets {loss.from_offset} to {loss.to_offset}"
        if count > 0
        else f"offset {loss.from_offset}"
    )
    return f"{loss.queue.logical_path}: {what}: {loss.reason.value}{detail}"


def data_loss(losses: Iterable[Loss]) -> DataLoss:
    """The error for these losses, of which there is at least one."""
    found = list(losses)
    shown = [describe(loss) for loss in found[:SHOWN_MAX]]
    if len(found) > SHOWN_MAX:
        shown.append(f"and {len(found) - SHOWN_MAX} more")
    advice = dict.fromkeys(_ADVICE[loss.reason] for loss in found)
    return DataLoss(
        f"messages that were asked for are not there: {'; '.join(shown)}. {'. '.join(advice)}. "
        "To read what there is and go on, set failOnDataLoss=false"
    )


def corrupt(queue: QueueKey, from_offset: int, to_offset: int, detail: str) -> Loss:
    """Damage of one message or a run of them."""
    return Loss(queue, from_offset, to_offset, LossReason.CORRUPT, detail)
