"""Message, PutResult and PutResults in pure Python: what goes into a put and what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from tiermq.kernel.message_values import offset_message_id, prepare_message, properties_of
from tiermq.status import PutStatus

PUT_OK = PutStatus.PUT_OK


class Message:
    """One message to put. Values are checked here once; sizes are checked by the store that gets it. Immutable.

    topic, queue_id: where it is stored. body: bytes. keys: what it can be found by (`query`). tags: what consumers
    filter by. properties: further texts by name; encoded_properties: the same as stored bytes, instead of them.
    born_timestamp_ms and born_host: when and where it was made (0 and b'': now, and unknown).
    """

    __slots__ = (
        "body",
        "born_host",
        "born_timestamp_ms",
        "encoded_properties",
        "flag",
        "prepared_transaction_offset",
        "queue_id",
        "reconsume_times",
        "special",
        "sys_flag",
        "topic",
        "waits_for_store",
    )

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        queue_id: int = 0,
        *,
        keys: str | Iterable[str] = (),
        tags: str = "",
        properties: Mapping[str, str] | None = None,
        encoded_properties: bytes | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int = 0,
        born_host: str | bytes = b"",
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> None:
        values = prepare_message(
            topic, body, queue_id, keys, tags, properties, encoded_properties, flag, sys_flag,
            born_timestamp_ms, born_host, reconsume_times, prepared_transaction_offset,
        )  # fmt: skip
        self.topic, self.body, self.encoded_properties, self.born_host, self.waits_for_store, self.special = values
        self.queue_id = queue_id
        self.flag = flag
        self.sys_flag = sys_flag
        self.reconsume_times = reconsume_times
        self.born_timestamp_ms = born_timestamp_ms
        self.prepared_transaction_offset = prepared_transaction_offset

    @property
    def properties(self) -> dict[str, str]:
        return properties_of(self.encoded_properties)

    def __repr__(self) -> str:
        return f"Message(topic={self.topic!r}, queue_id={self.queue_id}, body=<{len(self.body)} bytes>)"


class PutResult(tuple[Any, ...]):
    """What became of one put. `physical_offset` is -1 when nothing was stored.

    A tuple underneath, because that is what CPython makes fastest: a put spends a tenth of its time on its result.
    """

    __slots__ = ()

    def __new__(
        cls,
        status: PutStatus,
        host: bytes = b"",
        physical_offset: int = -1,
        queue_offset: int = -1,
        store_timestamp_ms: int = 0,
        size: int = 0,
        count: int = 1,
    ) -> Self:
        return tuple.__new__(cls, (status, host, physical_offset, queue_offset, store_timestamp_ms, size, count))

    @property
    def status(self) -> PutStatus:
        status: PutStatus = self[0]
        return status

    @property
    def physical_offset(self) -> int:
        return int(self[2])

    @property
    def queue_offset(self) -> int:
        return int(self[3])

    @property
    def store_timestamp_ms(self) -> int:
        return int(self[4])

    @property
    def size(self) -> int:
        return int(self[5])

    @property
    def count(self) -> int:  # type: ignore[override]
        return int(self[6])

    @property
    def ok(self) -> bool:
        return self[0] is PUT_OK

    @property
    def end_offset(self) -> int:
        return int(self[2]) + int(self[5])

    @property
    def message_id(self) -> str | None:
        return offset_message_id(self[1], self[2]) if self[2] >= 0 else None

    def with_status(self, status: PutStatus) -> PutResult:
        return PutResult(status, *self[1:])

    def __repr__(self) -> str:
        return (
            f"PutResult(status={self.status.name}, queue_offset={self.queue_offset}, "
            f"physical_offset={self.physical_offset}, size={self.size})"
        )


class PutResults:
    """The results of one put_many, in the order of its messages."""

    __slots__ = ("_results", "end_offset", "store_timestamp_ms")

    def __init__(self, results: list[PutResult], store_timestamp_ms: int) -> None:
        self._results = results
        self.store_timestamp_ms = store_timestamp_ms
        self.end_offset = max((r.end_offset for r in results if r.physical_offset >= 0), default=-1)

    def __len__(self) -> int:
        return len(self._results)

    def __getitem__(self, index: int) -> PutResult:
        return self._results[index]

    def __iter__(self) -> Iterator[PutResult]:
        return iter(self._results)

    @property
    def others_by_index(self) -> dict[int, PutResult]:
        return {at: result for at, result in enumerate(self._results) if not result.ok}

    @property
    def all_ok(self) -> bool:
        return all(result.ok for result in self._results)

    @staticmethod
    def refused(status: PutStatus, count: int) -> PutResults:
        """`count` results that all say `status`."""
        return PutResults([PutResult(status) for _ in range(count)], 0)

    def with_status(self, status: PutStatus) -> PutResults:
        """The same results with every stored one marked as `status` (a flush that timed out)."""
        return PutResults([r.with_status(status) if r.ok else r for r in self._results], self.store_timestamp_ms)
