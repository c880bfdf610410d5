"""The topics of a tier and their ids, as manifests and index entries remember them.

A topic's id is in every manifest of its queues; when they disagree, the one written last is right (a topic was deleted
and created again). A topic that no manifest knows gets a new id, above every id that any manifest or index entry
carries, so that an old entry is never taken for one of another topic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.index_survey import topic_ids_in_index
from tiermq.tier.metadata.manifest import QueueManifest
from tiermq.tier.metadata.metadata_values import Segment, Topic
from tiermq.tier.metadata.restore_report import Finding, Remark
from tiermq.tier.names import INDEX_TOPIC


@dataclass(frozen=True, slots=True)
class TopicSurvey:
    """The topics, and the last id that must not be handed out again."""

    topics: list[Topic]
    serial_number: int


def survey_topics(
    driver: TierDriver,
    names: Collection[str],
    manifests: Collection[QueueManifest],
    index_segments: Sequence[Segment],
    now_ms: int,
) -> tuple[TopicSurvey, list[Remark]]:
    """Every name gets its topic. Index entries are read only when some topic's id is not known."""
    remarks: list[Remark] = []
    remembered = _remembered(manifests, remarks)
    known = {name: topic for name, topic in remembered.items() if name in names}
    serial_number = max((max(known.topic_id, known.topic_serial_number) for known in manifests), default=-1)
    unknown = sorted(set(names) - known.keys())
    if unknown:
        counts = topic_ids_in_index(driver, index_segments)
        ids = {topic.id for topic in known.values()}
        remarks += [
            Remark(Finding.UNKNOWN_TOPIC_IN_INDEX, f"topic id {topic_id}", f"{count} entries")
            for topic_id, count in sorted(counts.items())
            if topic_id not in ids
        ]
        serial_number = max([serial_number, *counts])
    topics = list(known.values())
    for name in unknown:
        serial_number += 1
        topics.append(Topic(serial_number, name, updated_ms=now_ms))
        remarks.append(Remark(Finding.TOPIC_ID_ASSIGNED, f"topic {name}", f"id {serial_number}"))
    return TopicSurvey(sorted(topics, key=lambda topic: topic.id), serial_number), remarks


def _remembered(manifests: Iterable[QueueManifest], remarks: list[Remark]) -> dict[str, Topic]:
    """The topics that manifests know, by name; an id belongs to the topic that was written last."""
    by_topic: defaultdict[str, list[QueueManifest]] = defaultdict(list)
    for manifest in manifests:
        if manifest.topic_id >= 0 and manifest.key.topic != INDEX_TOPIC:
            by_topic[manifest.key.topic].append(manifest)
    latest = {name: max(group, key=lambda manifest: manifest.written_ms) for name, group in by_topic.items()}
    for name, group in sorted(by_topic.items()):
        others = sorted({manifest.topic_id for manifest in group} - {latest[name].topic_id})
        if others:
            text = f"id {latest[name].topic_id} was written last, others say {others}"
            remarks.append(Remark(Finding.TOPIC_ID_CONFLICT, f"topic {name}", text))
    holders: dict[int, QueueManifest] = {}
    for name in sorted(latest, key=lambda name: (-latest[name].written_ms, name)):
        holder = holders.setdefault(latest[name].topic_id, latest[name])
        if holder is not latest[name]:
            text = f"id {holder.topic_id} belongs to topic {holder.key.topic}, which was written later"
            remarks.append(Remark(Finding.TOPIC_ID_CONFLICT, f"topic {name}", text))
    return {manifest.key.topic: _topic(manifest) for manifest in holders.values()}


def _topic(manifest: QueueManifest) -> Topic:
    return Topic(
        manifest.topic_id,
        manifest.key.topic,
        manifest.topic_status,
        manifest.reserve_time_hours,
        manifest.max_bytes,
        manifest.written_ms,
    )
