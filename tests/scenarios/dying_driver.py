"""DyingDriver: the process dies at one chosen call to the tier, before or after the call had its effect."""

from __future__ import annotations

from typing import Any

from tiermq.tier.driver.contract import TierDriver

CALLS = frozenset({"write", "write_bundle", "fence_bundles", "read", "size", "trim", "seal", "is_sealed", "delete"})
CALLS |= frozenset({"list_segments", "get_object", "put_object", "delete_object", "list_objects"})


class Died(BaseException):
    """It is not handled: what it passes through is left as it is."""


class DyingDriver:
    """`die_at` is the number of the call at which it happens, counted from 1; 0: never. Only calls that change things
    can die after their effect; any other dies before it.
    """

    def __init__(self, inner: TierDriver) -> None:
        self.inner = inner
        self.url = inner.url
        self.die_at = 0
        self.after = False
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.inner, name)
        if name not in CALLS:
            return call

        def counted(*arguments: Any, **keywords: Any) -> Any:
            self.calls += 1
            dies = self.calls == self.die_at
            if dies and not self.after:
                raise Died(f"before {name}")
            result = call(*arguments, **keywords)
            if dies:
                raise Died(f"after {name}")
            return result

        return counted
