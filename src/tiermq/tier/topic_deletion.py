"""Deleting what the tier holds of a topic, in steps that can each be repeated.

    units and records of each queue ─► rows of the queue ─► whatever else lies below the topic's name ─► manifests

The last two steps go by the tier's own listing, so that nothing is forgotten that a crash, a restore or a foreign
program left there: a topic that is made again begins at offset 0, under the same names, and must find them free.
Manifests go last: until then the tier itself says that the topic is being deleted.
"""

from __future__ import annotations

from collections.abc import Callable

from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.metadata.manifest import queue_of_manifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import QueueKey, broker_directory


def delete_topic_objects(
    files: FlatFileStore,
    metadata: MetadataStore,
    driver: TierDriver,
    topic: str,
    on_gone: Callable[[QueueKey], None],
    forget: Callable[[QueueKey], None],
) -> None:
    """Delete the topic's segments, queues and manifests; its own row stays. Raises TierError; again, it goes on.

    `on_gone` removes the manifest of a queue, `forget` lets the index begin anew with it.
    """
    queues = {queue.key for queue in metadata.queues(topic)}
    queues |= {file.queue for file in files if file.queue.topic == topic}
    for key in sorted(queues):
        if not files.destroy(topic, key.queue_id):
            _delete_rows(metadata, driver, key)
        files.damaged.pop((topic, key.queue_id), None)
        forget(key)
    prefix = f"{broker_directory(files.cluster, files.broker)}/{topic}/"
    for info in list(driver.list_segments(prefix)):
        driver.delete(info.key)
        metadata.delete_segment(info.key)
    for name in driver.list_objects(prefix):
        owner = queue_of_manifest(name)
        if owner is None:
            driver.delete_object(name)
        else:
            on_gone(owner)


def _delete_rows(metadata: MetadataStore, driver: TierDriver, key: QueueKey) -> None:
    """The segments of a queue that could not be opened: it is known to the metadata alone."""
    for segment in metadata.segments(key):
        metadata.mark_deleted(segment.key)
    for segment in metadata.segments_being_deleted():
        if segment.key.queue == key:
            driver.delete(segment.key)
            metadata.delete_segment(segment.key)
    metadata.delete_queue(key)
