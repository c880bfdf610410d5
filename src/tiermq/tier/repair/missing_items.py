"""An index file of the items that others lack, behind all of them.

It has the companion of the newest file: what that claims to be covered is so from now on. The messages are looked for
once more, so that a repair that is run again, or finds the items made by another action, adds nothing twice.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace

from tiermq.clock import Clock
from tiermq.errors import StoreDamaged
from tiermq.files.os_file_access import OsFileAccess
from tiermq.tier.block_sums import BlockSums, summed
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.index.compacted_index import CompactedIndex, companion_name
from tiermq.tier.index.index_coverage import CoverageRecord
from tiermq.tier.index.index_item import is_merged
from tiermq.tier.index.index_table import hashes_of
from tiermq.tier.index.index_write_file import IndexWriteFile
from tiermq.tier.index.put_request import IndexRequest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import QueueKey, SegmentType
from tiermq.tier.repair.index_file_repair import DEFAULT_SLOTS, CannotIndex, RebuiltIndex
from tiermq.tier.tier_listing import TierScope
from tiermq.tier.verify import missing_keys_task
from tiermq.tier.verify_keys import KeyRange, find_missing
from tiermq.tier.verify_plan import plan_verify
from tiermq.tier.verify_task import IndexTask, QueueTask


def missing_requests(
    driver: TierDriver, index: QueueKey, ranges: Sequence[KeyRange], metadata: MetadataStore | None
) -> list[IndexRequest]:
    """The messages of the ranges that lack items, in the order of their queues. Raises what the driver raises."""
    plan = plan_verify(driver, TierScope(index.cluster, index.broker), metadata=metadata)
    files = [task for task in plan.tasks if isinstance(task, IndexTask)]
    owners = {task.key: task for task in plan.tasks if isinstance(task, QueueTask)}
    found: list[IndexRequest] = []
    for each in sorted(ranges):
        tasks = [task for task in plan.tasks if isinstance(task, QueueTask) and task.key == each.queue]
        if each.queue in owners and tasks:
            whole = replace(owners[each.queue], unit_from=tasks[0].unit_from, unit_to=tasks[-1].unit_to)
            found += find_missing(driver, missing_keys_task(0, each, whole, files)).requests
    return found


def build_missing(driver: TierDriver, index: QueueKey, requests: Sequence[IndexRequest], clock: Clock) -> RebuiltIndex:
    """A new index file of these messages' keys, at the end of the others. Raises CannotIndex."""
    files = sorted(
        (info for info in driver.list_segments(index.directory + "/") if info.key.type is SegmentType.INDEX),
        key=lambda info: info.key.base,
    )
    known = [(info, companion) for info in files if (companion := _companion(driver, info)) is not None]
    if not known:
        raise CannotIndex("no index file says what is covered; run `tiermq pipeline reindex`")
    record = known[-1][1]
    slots = max((facts.slots for _, companion in known for facts in companion.files), default=DEFAULT_SLOTS)
    taken = {facts.begin_ms for _, companion in known for facts in companion.files}
    begin_ms = clock.now_ms()
    while begin_ms in taken or is_merged(begin_ms):
        begin_ms += 1
    capacity = sum(len(hashes_of(request)) for request in requests) + 1
    with tempfile.TemporaryDirectory(prefix="tiermq-repair-") as directory:
        made = IndexWriteFile.create(OsFileAccess(), directory, begin_ms, slots, capacity)
        try:
            for each in requests:
                place = (each.topic_id, each.queue_id, each.tier_offset, each.size, each.store_ms)
                if not made.put(hashes_of(each), *place):
                    raise CannotIndex(f"{len(requests)} messages have more keys than were counted")
            data, facts = made.compact(), made.facts()
        finally:
            made.destroy()
    key = index.segment(SegmentType.INDEX, files[-1].key.base + files[-1].size)
    return RebuiltIndex(key, data, replace(record, files=(facts,)).encode(), facts)


def write_missing(driver: TierDriver, made: RebuiltIndex) -> None:
    """Companion first, as for every upload."""
    driver.put_object(companion_name(made.key), summed(made.companion, BlockSums.of(made.data)))
    driver.write(made.key, 0, [made.data])
    driver.seal(made.key)


def _companion(driver: TierDriver, info: SegmentInfo) -> CoverageRecord | None:
    try:
        return CompactedIndex(driver, Segment(info.key, info.size)).companion()
    except StoreDamaged:
        return None
