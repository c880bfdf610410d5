"""What a replay makes of a message: the value that a user's function gets and gives, and what is changed by options.

A message that was delivered once is delivered at once when it is replayed: delays, timers, transactions and the
places of retries are left behind. Its keys, tags, its client's id (UNIQ_KEY) and the user's own properties stay.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tiermq.errors import BadOption
from tiermq.message import properties as names

MARK = "TIERMQ_REPLAY"
"""The property by which a replayed message names its replay and where it comes from."""

LEFT_BEHIND = frozenset(
    {
        names.KEYS, names.TAGS, names.WAIT,  # These are fields of the value.
        names.DELAY, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS, names.TIMER_OUT_MS,
        names.TIMER_ENQUEUE_MS, names.TIMER_DEQUEUE_MS, names.TIMER_ROLL_TIMES, names.TIMER_DEL_UNIQKEY,
        names.REAL_TOPIC, names.REAL_QID, names.RETRY_TOPIC, names.TRAN_MSG, names.TRAN_PREPARED_QUEUE_OFFSET,
        names.TRANSACTION_CHECK_TIMES, names.INNER_NUM, names.INNER_BASE, names.INNER_MULTI_DISPATCH,
        names.INNER_MULTI_QUEUE_OFFSET, names.CRC32, names.POP_CK, names.RECONSUME_TIME,
        names.MAX_RECONSUME_TIMES, MARK,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class SourcePosition:
    """Where a message was before."""

    broker: str
    topic: str
    queue_id: int
    queue_offset: int

    @property
    def text(self) -> str:
        return f"{self.broker}/{self.topic}/{self.queue_id}/{self.queue_offset}"

    @classmethod
    def of(cls, text: str) -> SourcePosition:
        broker, topic, queue_id, queue_offset = text.rsplit("/", 3)
        return cls(broker, topic, int(queue_id), int(queue_offset))


@dataclass(frozen=True, slots=True)
class ReplayMessage:
    """A message to replay. A function changes it with `dataclasses.replace`; `source` is information only."""

    topic: str
    body: bytes
    queue_id: int
    source: SourcePosition
    tags: str = ""
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    born_timestamp_ms: int = 0
    store_timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReplayMapping:
    """Options in the order in which they apply: the function first, then topic, queues and properties.

    `function` is `module:function`, importable where tasks run; it takes a ReplayMessage and returns one, or None.
    """

    topic: str | None = None
    queue_count: int | None = None
    properties: tuple[tuple[str, str], ...] = ()
    function: str | None = None

    def apply(self, message: ReplayMessage) -> ReplayMessage | None:
        """Raises BadOption when the function fails, or returns something else than it should."""
        if self.function is not None:
            try:
                made = function_of(self.function)(message)
            except BadOption:
                raise
            except Exception as error:
                # It is the user's own: whatever it raises, running the task again raises it again.
                raise BadOption(
                    f"{self.function} failed for {message.source.text}: {type(error).__name__}: {error}; nothing of "
                    "this part was put. Fix it, and run the replay again with the same record"
                ) from error
            if made is None:
                return None
            if not isinstance(made, ReplayMessage):
                raise BadOption(
                    f"{self.function}: expected it to return a ReplayMessage or None, found {type(made).__name__} "
                    f"(for {message.source.text})"
                )
            message = replace(made, source=message.source)
        changes: dict[str, Any] = {}
        if self.topic is not None:
            changes["topic"] = self.topic
        if self.queue_count is not None:
            changes["queue_id"] = message.queue_id % self.queue_count
        if self.properties:
            changes["properties"] = {**message.properties, **dict(self.properties)}
        return replace(message, **changes) if changes else message


_functions: dict[str, Callable[[ReplayMessage], Any]] = {}


def function_of(text: str) -> Callable[[ReplayMessage], Any]:
    """The function of a text `module:function`. Raises BadOption."""
    if text not in _functions:
        module, colon, name = text.partition(":")
        if not colon or not module or not name:
            raise BadOption(f"expected module:function, such as shop.replay:anonymise, found {text!r}")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise BadOption(f"{text}: {error}; it must be importable here and on the executors (PYTHONPATH)") from error
        if not callable(found):
            raise BadOption(f"{text}: expected a function, found {type(found).__name__}")
        _functions[text] = found
    return _functions[text]


def message_of_row(row: dict[str, Any]) -> ReplayMessage:
    """From a row with the columns of `ROW_COLUMNS`, of a history or of an exported table."""
    given = row["properties"] or []
    properties = dict(given if isinstance(given, dict) else list(given))
    return ReplayMessage(
        row["topic"],
        row["body"] or b"",
        row["queueId"],
        SourcePosition(row["brokerName"], row["topic"], row["queueId"], row["queueOffset"]),
        row["tags"] or "",
        tuple(row["keys"] or ()),
        {name: value for name, value in properties.items() if name not in LEFT_BEHIND and value},
        row["flag"] or 0,
        _ms(row["bornTimestamp"]),
        _ms(row["storeTimestamp"]),
    )


ROW_COLUMNS = (
    "topic", "brokerName", "queueId", "queueOffset", "tags", "keys", "body", "properties", "flag", "bornTimestamp",
    "storeTimestamp",
)  # fmt: skip


def _ms(moment: Any) -> int:
    return 0 if moment is None else round(moment.timestamp() * 1000)
