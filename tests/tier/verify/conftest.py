"""What the tests of verification share."""

from __future__ import annotations

from tier.verify_world import sound_tier as sound_tier
