"""Auto-switch stream: the HA protocol of RocketMQ brokers whose master is elected, the same in 5.3 and 5.5.

Slave to master, a handshake of 16 bytes and reports of 12:

    0         4            6            8              16
    +---------+------------+------------+--------------+
    | state 1 | last file  | learner    | replica id   |   last file: 1 for the newest file only, of an empty slave
    +---------+------------+------------+--------------+   learner: 1 for a replica that does not count
    | state 2 | end of the log          |                  the first report is also the request "send from here"
    +---------+-------------------------+
    0         4                         12

Master to slave, the answer to a handshake and frames of log bytes:

    0         4           8            16           20
    +---------+-----------+------------+------------+---------------------------+
    | state 1 | body size | log's end  | last epoch | n × (epoch i32 start i64) |
    +---------+-----------+------------+------------+-------------+-------------+--+------------------+
    | state 2 | body size | offset     | epoch      | epoch start | confirm offset | commit-log bytes |
    +---------+-----------+------------+------------+-------------+----------------+------------------+
    0         4           8            16           20            28               36

All big-endian. Invariants: a body is of one file and one epoch, at most BODY_BYTES_MAX long; size 0 is a heartbeat,
whose offset is where the next body begins, or -1 of an empty RocketMQ master. RocketMQ 5.3.3 labels the last bytes of
an epoch with the next one: then the offset is before the epoch's start, and still the start is right.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import NamedTuple

from tiermq.errors import ReplicationError
from tiermq.replication.epoch_file import EpochEntry
from tiermq.replication.ha_stream import BODY_BYTES_MAX, ReceiveBuffer

HANDSHAKE_STATE = 1
TRANSFER_STATE = 2
EPOCHS_MAX = 1000
"""What RocketMQ sends and reads at most."""

HANDSHAKE = struct.Struct(
    ">"
    "i"  # state         1
    "h"  # last_file     1: an empty slave wants the newest file only
    "h"  # is_learner    1: acknowledgements do not count
    "q"  # replica_id    the broker's id, as the controller gave it
)
REPORT = struct.Struct(
    ">"
    "i"  # state         2
    "q"  # end           end of the slave's log
)
ANSWER = struct.Struct(
    ">"
    "i"  # state         1
    "i"  # body_size     12 bytes per epoch
    "q"  # log_end       end of the master's log
    "i"  # last_epoch
)
EPOCH = struct.Struct(
    ">"
    "i"  # epoch
    "q"  # start         physical offset of its first byte
)
TRANSFER = struct.Struct(
    ">"
    "i"  # state         2
    "i"  # body_size     0: heartbeat
    "q"  # offset        physical offset of the body's first byte
    "i"  # epoch         of these bytes
    "q"  # epoch_start   its first byte
    "q"  # confirm       what the master has committed
)
_SIZES = struct.Struct(">ii")  # What both frames begin with: state and size of the body.
assert (HANDSHAKE.size, REPORT.size, ANSWER.size, EPOCH.size, TRANSFER.size) == (16, 12, 20, 12, 36)


class Handshake(NamedTuple):
    """A slave introduces itself."""

    from_last_file: bool
    is_learner: bool
    replica_id: int

    def encode(self) -> bytes:
        return HANDSHAKE.pack(HANDSHAKE_STATE, self.from_last_file, self.is_learner, self.replica_id)


class Answer(NamedTuple):
    """The master's log by epoch."""

    log_end: int
    entries: tuple[EpochEntry, ...]

    def encode(self) -> bytes:
        entries = self.entries[-EPOCHS_MAX:]
        body = b"".join(EPOCH.pack(*each) for each in entries)
        last = entries[-1].epoch if entries else -1
        return ANSWER.pack(HANDSHAKE_STATE, len(body), self.log_end, last) + body


class Transfer(NamedTuple):
    """Bytes of the log; a heartbeat without any. `body` is valid until more is received."""

    offset: int
    epoch: int
    epoch_start: int
    confirm: int
    body: memoryview


def transfer_header(offset: int, size: int, entry: EpochEntry, confirm: int) -> bytes:
    return TRANSFER.pack(TRANSFER_STATE, size, offset, entry.epoch, entry.start, confirm)


def decode_slave(data: bytes) -> tuple[list[Handshake | int], bytes]:
    """(handshakes and reported ends, bytes of one that is not whole yet). Raises ReplicationError."""
    found: list[Handshake | int] = []
    at = 0
    while len(data) - at >= REPORT.size:
        state, end = REPORT.unpack_from(data, at)
        if state == TRANSFER_STATE:
            found.append(end)
            at += REPORT.size
        elif state == HANDSHAKE_STATE:
            if len(data) - at < HANDSHAKE.size:
                break
            _, last_file, learner, replica_id = HANDSHAKE.unpack_from(data, at)
            found.append(Handshake(last_file == 1, learner == 1, replica_id))
            at += HANDSHAKE.size
        else:
            raise ReplicationError(
                f"expected a handshake or a report of a slave under a controller, found state {state}: the peer speaks "
                "the default HA protocol"
            )
    return found, data[at:]


class MasterFrames(ReceiveBuffer):
    """Received bytes of a master, cut into frames. Belongs to one thread."""

    def received(self, count: int) -> Iterator[Answer | Transfer]:
        """Every frame that is whole now. Raises ReplicationError for what no master sends."""
        self._end += count
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Answer | Transfer | None:
        if self._end - self._start < _SIZES.size:
            return None
        state, size = _SIZES.unpack_from(self._buffer, self._start)
        header = {HANDSHAKE_STATE: ANSWER, TRANSFER_STATE: TRANSFER}.get(state)
        if header is None or not 0 <= size <= BODY_BYTES_MAX or (header is ANSWER and size % EPOCH.size):
            raise ReplicationError(
                f"expected a frame of at most {BODY_BYTES_MAX} bytes from a master under a controller, found state "
                f"{state} and size {size}: the peer is no master, or one without a controller (its stream has another "
                "format)"
            )
        begin, body = self._start, self._start + header.size
        if self._end - body < size:
            return None
        self._start = body + size
        if header is ANSWER:
            return _answer(ANSWER.unpack_from(self._buffer, begin)[2], self._buffer[body : body + size])
        _, _, offset, epoch, epoch_start, confirm = TRANSFER.unpack_from(self._buffer, begin)
        return Transfer(offset, epoch, epoch_start, confirm, self._buffer[body : body + size])


def _answer(log_end: int, body: memoryview) -> Answer:
    entries = tuple(EpochEntry(*each) for each in EPOCH.iter_unpack(body))
    rises = all(old.epoch < new.epoch and old.start <= new.start for old, new in itertools.pairwise(entries))
    if not rises or (entries and not 0 <= entries[0].start <= entries[-1].start <= log_end):
        raise ReplicationError(
            f"expected epochs of a master that rise up to the end of its log, {log_end}, found {entries[-3:]}: nothing "
            "is cut by them"
        )
    return Answer(log_end, entries)
