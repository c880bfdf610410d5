"""A driver whose writes go into bundles, to run the contract over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tiermq.errors import BundlesFenced
from tiermq.tier.driver.contract import Buffer, ForwardingDriver, SegmentWrite, TierDriver, joined
from tiermq.tier.names import SegmentKey, broker_directory


class BundlingDriver(ForwardingDriver):
    """Fences as a new owner of the lease does, whenever another one has. `is_quiet`: which writes go into bundles."""

    def __init__(self, inner: TierDriver, is_quiet: Callable[[bytes], bool] = bool) -> None:
        super().__init__(inner)
        self._is_quiet = is_quiet

    def write(self, key: SegmentKey, position: int, data: Sequence[Buffer]) -> bool:
        if not self._is_quiet(joined(data)):
            return self.inner.write(key, position, data)
        while True:
            try:
                return self.inner.write_bundle([SegmentWrite(key, position, data)])[0]
            except BundlesFenced:
                self.inner.fence_bundles(broker_directory(key.cluster, key.broker), create=True)
