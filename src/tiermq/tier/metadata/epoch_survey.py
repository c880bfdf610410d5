"""The highest epoch that a broker's manifests tell, for whoever takes a lease that tells none.

A lease is gone, or was damaged and is taken over: its epoch is nowhere but in what its holders wrote. Jobs write
without the broker's knowledge, so its own metadata may be behind; the manifests of its queues, of its index and of its
far timers are not. Every one of them has `epoch` in its body, in all versions, so one of a newer TierMQ counts, too.

A damaged manifest is told and passed over: nobody writes its queue before a repair has written it anew, under the epoch
of the lease that the repair holds.

Cost: one listing of what the broker has in the tier, and one GET for each manifest, many at a time; for a tier that has
nothing of the broker yet, the listing alone.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.document import CorruptManifest, number_field, open_document, refuse_document
from tiermq.tier.metadata.manifest import MANIFEST_STEM
from tiermq.tier.names import OBJECT_SUFFIX, broker_directory

_log = logging.getLogger(__name__)

READ_THREADS = 16
TELL_EVERY = 1_000
_NAME_END = f"/{MANIFEST_STEM}{OBJECT_SUFFIX}"
_ANY_VERSION = 1 << 63


def survey_epochs(driver: TierDriver, cluster: str, broker: str) -> int:
    """The highest epoch in any manifest of the broker; 0 when there is none. Raises what the driver raises."""
    home = broker_directory(cluster, broker)
    names = [name for name in driver.list_objects(f"{home}/") if name.endswith(_NAME_END)]
    if not names:
        return 0
    _log.warning("%s: no lease tells the broker's epoch, so its %d manifests are read for it", home, len(names))
    highest = 0
    with ThreadPoolExecutor(min(READ_THREADS, len(names)), thread_name_prefix="epoch-survey") as pool:
        try:
            for done, epoch in enumerate(pool.map(lambda name: _epoch(driver, name), names), start=1):
                highest = max(highest, epoch)
                if done % TELL_EVERY == 0 and done < len(names):
                    _log.info("%s: %d of %d manifests are read for the broker's epoch", home, done, len(names))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    _log.warning("%s: the highest epoch of %d manifests is %d", home, len(names), highest)
    return highest


def _epoch(driver: TierDriver, name: str) -> int:
    stored = driver.get_object(name)
    if stored is None:
        return 0  # Deleted since it was listed.
    try:
        return _epoch_of(stored.data, name)
    except CorruptManifest as error:
        _log.error("a manifest tells no epoch: %s", error)
        return 0


def _epoch_of(data: bytes, name: str) -> int:
    body = open_document(data, name, _ANY_VERSION)
    try:
        return number_field(body, "epoch")
    except (ValueError, LookupError) as error:
        refuse_document(name, f"a body without an epoch ({error})")
