"""All parts of the campaign, in the order in which they take turns."""

from __future__ import annotations

from campaign.hostile.part import PARTS as HOSTILE
from campaign.networks.part import PARTS as NETWORKS
from campaign.part import Part
from campaign.simulation.part import PARTS as SIMULATION
from campaign.soak.part import PARTS as SOAK


def all_parts() -> list[Part]:
    """Each once."""
    return [*SIMULATION, *NETWORKS, *HOSTILE, *SOAK]
