"""Why a put was refused, as an error: from RocketMQ's status and the state of the store to words."""

from __future__ import annotations

from collections.abc import Sequence

from tiermq.errors import DiskFull, IllegalMessage, NotDurable, PutRefused, StoreError, TierMQError
from tiermq.kernel import Message, PutResults
from tiermq.message.layout import PROPERTIES_BYTES_MAX
from tiermq.message.topic_name import topic_problem
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore

_BROKEN_PROPERTIES = "its properties contradict its flags: an inner batch, or light queues, that cannot be stored"


def refusal(store: LocalStore, message: Message, status: PutStatus) -> TierMQError:
    """The error of a message that was refused with a status."""
    queue = f"{message.topic}-{message.queue_id}"
    if status is PutStatus.MESSAGE_ILLEGAL:
        return IllegalMessage(f"{queue}: {_problem(store, message)}")
    if status is PutStatus.PROPERTIES_SIZE_EXCEEDED:
        found = len(message.encoded_properties)
        return IllegalMessage(
            f"{queue}: expected keys, tags and properties of at most {PROPERTIES_BYTES_MAX} bytes together, with what "
            f"the store adds; found {found}"
        )
    if status is PutStatus.FLUSH_DISK_TIMEOUT:
        limit_ms = store.config.sync_flush_timeout
        return NotDurable(f"{queue}: the message is in the log, but the disk did not confirm it within {limit_ms} ms")
    return _store_problem(store, queue, status)


def check_all(store: LocalStore, messages: Sequence[Message], results: PutResults) -> None:
    """Raise for the first refused message of a `put_many`: its own error if none was stored, else PutRefused, which has
    the results.
    """
    refused = results.others_by_index
    if not refused:
        return
    at, first = next(iter(sorted(refused.items())))
    error = refusal(store, messages[at], first.status)
    if len(refused) == len(messages) and len({each.status for each in refused.values()}) == 1:
        raise error
    kind = NotDurable if isinstance(error, NotDurable) else PutRefused
    raise kind(f"{len(refused)} of {len(messages)} messages were refused; message {at}: {error}", results) from error


def _problem(store: LocalStore, message: Message) -> str:
    problem = topic_problem(message.topic)
    if problem is not None:
        return problem
    config, size = store.config, len(message.body)
    if size > config.max_message_size:
        return (
            f"expected a body of at most {config.max_message_size} bytes, found {size}; raise max_message_size, or "
            "store the body elsewhere and put its address"
        )
    needed = store.appender.record_bytes(message)
    if needed + 8 > config.mapped_file_size_commit_log:
        return f"expected a record that fits a log file of {config.mapped_file_size_commit_log} bytes, found {needed}"
    return _BROKEN_PROPERTIES


def _store_problem(store: LocalStore, queue: str, status: PutStatus) -> StoreError:
    root = store.config.root_path
    if not store.running:
        return store.closed_error()
    if status is PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED:
        return PutRefused(
            f"{queue}: expected memory maps for another queue at the next start, found too few left, of which light "
            "queues have half; raise `sysctl vm.max_map_count`, or delete topics that are not used"
        )
    if status is PutStatus.OS_PAGE_CACHE_BUSY:
        limit_ms = store.config.os_page_cache_busy_time_out_mills
        return PutRefused(f"{queue}: other puts kept the log's end for more than {limit_ms} ms; put it again")
    reasons, failure = store.refuses_puts_because, store.room_failure
    if isinstance(failure, DiskFull):
        return DiskFull(f"{queue}: nothing was stored: {failure}")
    if failure is not None and not reasons:
        return PutRefused(f"{queue}: nothing was stored: {failure}")
    return PutRefused(f"the store in {root} takes no messages: {reasons or status.name}")
