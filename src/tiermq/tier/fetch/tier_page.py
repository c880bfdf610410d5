"""TierPage: what one get from the tier found. The same shape as the local store's page; it lives in the kernel.

The records are those of the local store but for their physical offset, which is the one in the tier. A record that
carries RocketMQ's whole-record CRC property therefore disagrees with it; here the property is not looked at. The body's
own CRC was checked when the window was fetched.
"""

from __future__ import annotations

from tiermq.kernel import TierPage

__all__ = ["TierPage"]
