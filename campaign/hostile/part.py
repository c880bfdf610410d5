"""All of `hostile` as parts of the campaign."""

from __future__ import annotations

from pathlib import Path

from campaign.hostile.access import AccessPart
from campaign.hostile.bombs import BombsPart
from campaign.hostile.floods import FloodsPart
from campaign.hostile.fuzz import FuzzPart
from campaign.hostile.grpc_calls import GrpcCallsPart
from campaign.hostile.paths import PathsPart
from campaign.hostile.record_targets import record_targets
from campaign.hostile.requests import RequestsPart
from campaign.hostile.secrets import SecretsPart
from campaign.hostile.stored_targets import stored_targets
from campaign.hostile.target import Target
from campaign.hostile.text_targets import text_targets
from campaign.hostile.wire_targets import wire_targets
from campaign.part import Part


def all_targets(scratch: Path) -> list[Target]:
    return [*record_targets(), *wire_targets(), *stored_targets(scratch / "stored"), *text_targets(scratch / "text")]


PARTS: list[Part] = [
    FuzzPart(all_targets),
    RequestsPart(),
    AccessPart(),
    GrpcCallsPart(),
    PathsPart(),
    BombsPart(),
    FloodsPart(),
    SecretsPart(),
]
