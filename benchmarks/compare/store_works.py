"""The local store, embedded on both sides: puts, lists, dispatch, recovery, gets, key index.

RocketMQ's side is the real `DefaultMessageStore` (`java/rocketmq/Store*.java`), TierMQ's the real `LocalStore`
(`store_peer`). Messages are those of `workload`: 16 topics of 4 queues, one key, 173 bytes beside the body.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import limits, workload
from benchmarks.compare import store_peer
from benchmarks.compare.peer_process import Peer, start_rocketmq, start_tiermq
from benchmarks.compare.work import LIMIT, ROCKETMQ, TIERMQ, Goal, Kind, Opener, Place, Sides, Work
from benchmarks.harness import GIB, MIB, Side

PUTS, READS = "store put", "store"
QUICK = 10
PUT_BYTES = 224 * MIB
PUT_FILE_BYTES = 256 * MIB
LOG_BYTES = 256 * MIB
FLUSHES = 500
LIST_COUNT = 1000
LIST_BODY_BYTES = 200
GET_MESSAGES = 1_600_000
INDEX_KEYS = 1_000_000
INDEX_QUERIES = 100_000
RECOVER_BYTES = 128 * MIB
RECOVER_LARGE_BYTES = 2 * GIB
WARM_MAP_BYTES = 64 * MIB
COPY_BYTES = MIB

SAME = "settings are RocketMQ's defaults on both sides; log files are warmed on both; neither logs"


def _file_bytes(own: int, place: Place) -> int:
    """Files of the log grow with it, up to RocketMQ's own size."""
    return min(GIB, own * place.scale // place.part)


def _peers(place: Place, stack: ExitStack, work: str) -> dict[str, Peer]:
    """Both sides of a work, each with a directory of its own below."""
    return {
        TIERMQ: start_tiermq(stack, "store_peer", work),
        ROCKETMQ: start_rocketmq(stack, work, place.directory / "home"),
    }


def _sides(peers: dict[str, Peer], runs: dict[str, object] | Callable[[], dict[str, object]]) -> Sides:
    def round_of(peer: Peer) -> Side:
        return lambda: peer.run(**(runs() if callable(runs) else runs))

    return Sides(
        {name: round_of(peer) for name, peer in peers.items()}, {name: peer.pid for name, peer in peers.items()}
    )


def _seeds(**fixed: object) -> Callable[[], dict[str, object]]:
    """The parameters of a round that draws places at random, others in every round."""
    numbers = itertools.count()
    return lambda: {**fixed, "seed": next(numbers)}


def _memcpy(place: Place, stack: ExitStack, record_bytes: int, messages: int) -> Side:
    """Copies of the bytes of `messages` records into one warm map that is begun again when it is full.

    In blocks of many records: what is asked for is the machine's limit, not that of calls.
    """
    block_records = max(1, COPY_BYTES // record_bytes)
    block = bytes(record_bytes * block_records)
    copied = stack.enter_context(limits.Memcpy(place.directory / "limit", WARM_MAP_BYTES, block, block_records))
    return lambda: copied.round(max(1, messages // block_records))


# Puts


def _put(
    place: Place, stack: ExitStack, *, threads: int, body: int, list_count: int = 0, dispatched: bool = False
) -> Sides:
    record = store_peer.OVERHEAD_BYTES + body
    count = place.amount(PUT_BYTES) // record // (threads * max(1, list_count)) * (threads * max(1, list_count))
    log_size = _file_bytes(PUT_FILE_BYTES, place)
    peers = _peers(place, stack, "StorePut")
    for name, peer in peers.items():
        peer.prepare(
            dir=place.directory / name,
            log_size=log_size,
            flush="ASYNC_FLUSH",
            body=body,
            threads=threads,
            list=list_count,
            dispatched=int(dispatched),
        )
    sides = _sides(peers, {"count": count})
    sides.rounds[LIMIT] = _memcpy(place, stack, record, count)
    sides.notes = {
        "settings": f"ASYNC_FLUSH, files of {log_size >> 20} MiB; {SAME}",
        "dispatch": "runs beside the puts; "
        + ("a round ends when it is done" if dispatched else "the rest of it is done before the next round, untimed"),
        "store": "a new one in every round, whose first files are there and warm",
        "messages": count,
        "record_bytes": record,
    }
    return sides


def _put_sync(place: Place, stack: ExitStack, *, threads: int, body: int) -> Sides:
    record = store_peer.OVERHEAD_BYTES + body
    count = place.amount(FLUSHES) * threads
    peers = _peers(place, stack, "StorePut")
    for name, peer in peers.items():
        peer.prepare(
            dir=place.disk / name,
            log_size=PUT_FILE_BYTES,
            flush="SYNC_FLUSH",
            body=body,
            threads=threads,
            list=0,
            dispatched=0,
        )
    sides = _sides(peers, {"count": count})
    raw = stack.enter_context(limits.RawFlush(place.disk / "limit", WARM_MAP_BYTES, bytes(record * threads), threads))
    sides.rounds[LIMIT] = lambda: raw.round(count // threads)
    sides.notes = {
        "settings": f"SYNC_FLUSH, files of {PUT_FILE_BYTES >> 20} MiB on a disk; {SAME}",
        "dispatch": "runs beside the puts",
        "store": "the same in all rounds",
        "messages": count,
        "record_bytes": record,
    }
    return sides


# What is done with a full log


def fill(directory: Path, log_size: int, size: int, varied: bool) -> int:
    """Let TierMQ write `size` bytes of the workload into a store and close it, nothing dispatched; how many records."""
    with store_peer.open_store(str(directory), log_size, background=False, warm_maped_file_enable=False) as store:
        return store_peer.put_rows(store, size, varied)


def _dispatch(place: Place, stack: ExitStack) -> Sides:
    size = place.amount(LOG_BYTES)
    log_size = _file_bytes(LOG_BYTES, place)
    filled = place.directory / "filled"
    records = fill(filled, log_size, size, varied=True)
    peers = _peers(place, stack, "StoreDispatch")
    shared = {"log_size": log_size, "records": records}
    peers[TIERMQ].prepare(dir=filled, **shared)
    peers[ROCKETMQ].prepare(dir=place.directory / ROCKETMQ, log_dir=filled / "commitlog", **shared)
    sides = _sides(peers, {})
    sides.notes = {
        "settings": SAME,
        "work": "consume queues and key index of a whole log, from offset zero, on the calling thread: "
        "ReputMessageService.doReput and LocalStore.dispatch_now; both read one and the same log",
        "records": records,
    }
    return sides


def _get(place: Place, stack: ExitStack, *, batch: int) -> Sides:
    size = place.amount(LOG_BYTES)
    log_size = _file_bytes(LOG_BYTES, place)
    filled = place.directory / "filled"
    peers = _peers(place, stack, "StoreGet")
    shared = {"log_size": log_size, "batch": batch}
    records = peers[TIERMQ].prepare(dir=filled, size=size, **shared)["records"]
    peers[ROCKETMQ].prepare(dir=place.directory / ROCKETMQ, log_dir=filled / "commitlog", **shared)
    pulls = GET_MESSAGES // batch // (QUICK if place.quick else 1)
    sides = _sides(peers, _seeds(pulls=pulls))
    sides.rounds[LIMIT] = _memcpy(place, stack, workload.RECORD_BYTES, pulls * batch)
    sides.notes = {
        "settings": f"as many messages per get as are asked for; {SAME}",
        "work": "random queues and offsets of a log that TierMQ has just written and both read; each get ends with one "
        "block of bytes",
        "records": records,
    }
    return sides


def _recover(place: Place, stack: ExitStack, *, size: int, crashed: bool) -> Sides:
    size = place.amount(size)
    ours, theirs, saved = place.directory / TIERMQ, place.directory / ROCKETMQ, place.directory / "saved"
    records = fill(ours, GIB, size, varied=True)
    store_peer.copy_tree(ours, theirs)
    store_peer.copy_tree(ours, saved, without="commitlog")
    if crashed:
        shutil.rmtree(saved / "index")  # It was not durable: both sides would remove it first.
        (saved / "tiermq.clean").unlink()
        (saved / "checkpoint").unlink()
        (saved / "abort").write_bytes(b"1")
    peers = _peers(place, stack, "StoreRecover")
    shared = {"saved": saved, "log_size": GIB, "records": records, "crashed": int(crashed)}
    peers[TIERMQ].prepare(dir=ours, **shared)
    peers[ROCKETMQ].prepare(dir=theirs, **shared)
    sides = _sides(peers, {})
    left = "an abort file, consume queues, no checkpoint, so that everything is walked, checked and dispatched again"
    sides.notes = {
        "settings": "messageIndexSafe, files of 1 GiB that are not warmed; otherwise RocketMQ's defaults on both sides",
        "work": f"opening a copy of one and the same store that {'crashed: ' + left if crashed else 'was closed'}",
        "records": records,
        "log_bytes": size,
    }
    return sides


def _index(place: Place, stack: ExitStack, *, query: bool) -> Sides:
    keys = place.amount(INDEX_KEYS)
    peers = _peers(place, stack, "StoreIndex")
    for name, peer in peers.items():
        peer.prepare(dir=place.directory / name, log_size=PUT_FILE_BYTES, keys=keys, query=int(query))
    queries = INDEX_QUERIES // (QUICK if place.quick else 1)
    sides = _sides(peers, _seeds(count=queries) if query else {})
    sides.notes = {
        "settings": "one file of 5,000,000 slots and 20,000,000 entries",
        "work": "IndexService.queryOffset and IndexService.query: one key each"
        if query
        else "IndexService.buildIndex of one request after the other; TierMQ's IndexService.put_keys of 1,000 keys",
        "keys": keys,
    }
    return sides


def _puts() -> list[Work]:
    made = []
    goals = {1: Goal(1.5), 16: Goal(1.2)}
    for threads, body in itertools.product((1, 4, 16), (128, 1024, 65536)):
        made.append(
            Work(
                f"put_{threads}_{body}_async",
                PUTS,
                f"put of {body} B, {_producers(threads)}, ASYNC_FLUSH",
                partial(_put, threads=threads, body=body),
                goal=goals.get(threads) if body < 65536 or threads > 1 else None,
                limit="memcpy of the records into a warm map",
                growth_part=8,
            )
        )
    made += [
        Work(
            f"put_{threads}_1024_dispatched",
            PUTS,
            f"put of 1 KiB until all can be got, {_producers(threads)}, ASYNC_FLUSH",
            partial(_put, threads=threads, body=1024, dispatched=True),
            limit="memcpy of the records into a warm map",
            growth_part=8,
        )
        for threads in (1, 16)
    ]
    made += [
        Work(
            f"put_{threads}_1024_sync",
            PUTS,
            f"put of 1 KiB, {_producers(threads)}, SYNC_FLUSH",
            partial(_put_sync, threads=threads, body=1024),
            goal=Goal(1.2) if threads >= 16 else None,
            limit="pwrite and fdatasync of one record per producer",
            growth_part=8,
        )
        for threads in (1, 4, 16, 64)
    ]
    return made


def _producers(threads: int) -> str:
    return "1 producer" if threads == 1 else f"{threads} producers"


def _on_log(name: str, title: str, opener: Opener, goal: float | None = None, **more: object) -> Work:
    return Work(name, READS, title, opener, Kind.RATE, None if goal is None else Goal(goal), **more)  # type: ignore[arg-type]


def _recoveries() -> list[Work]:
    rare = {"rounds_max": 5, "needs_warmup": True}
    crash = partial(_recover, size=RECOVER_BYTES, crashed=True)
    return [
        _on_log("recover_crash", "crash recovery, 128 MiB and more", crash, 3, growth_part=1, **rare),
        _on_log(
            "recover_clean_2g",
            "open of 2 GiB that were closed",
            partial(_recover, size=RECOVER_LARGE_BYTES, crashed=False),
            growth_part=16,
            **rare,
        ),
        _on_log(
            "recover_crash_2g",
            "crash recovery of 2 GiB",
            partial(_recover, size=RECOVER_LARGE_BYTES, crashed=True),
            3,
            grows=False,  # It is what `recover_crash` is at 16×.
            **rare,
        ),
    ]


WORKS: list[Work] = [
    *_puts(),
    Work(
        "put_list_1000",
        PUTS,
        "list put of 1,000 against a batch of 1,000",
        partial(_put, threads=1, body=LIST_BODY_BYTES, list_count=LIST_COUNT),
        goal=Goal(2),
        limit="memcpy of the records into a warm map",
        growth_part=8,
    ),
    _on_log("dispatch_full", "dispatch of a full commit log", _dispatch, 3, rounds_max=5),
    *_recoveries(),
    _on_log("get_32", "hot get of 32", partial(_get, batch=32), 1.5, limit="memcpy of the bytes into a warm map"),
    _on_log("get_1000", "hot get of 1,000", partial(_get, batch=1000), limit="memcpy of the bytes into a warm map"),
    _on_log("index_put", "key index: put", partial(_index, query=False), 3),
    _on_log("index_query", "key index: query", partial(_index, query=True)),
]
