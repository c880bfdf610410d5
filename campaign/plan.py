"""All parts of the campaign, in the order in which they take turns."""

from __future__ import annotations

from campaign.disks.part import PARTS as DISKS
from campaign.fleets.part import PARTS as FLEETS
from campaign.hostile.part import PARTS as HOSTILE
from campaign.kills.part import PARTS as KILLS
from campaign.networks.part import PARTS as NETWORKS
from campaign.part import Part
from campaign.power_cuts.part import PARTS as POWER_CUTS
from campaign.replicas.part import PARTS as REPLICAS
from campaign.simulation.part import PARTS as SIMULATION
from campaign.soak.part import PARTS as SOAK


def all_parts() -> list[Part]:
    """Each once."""
    return [*SIMULATION, *NETWORKS, *HOSTILE, *POWER_CUTS, *KILLS, *REPLICAS, *FLEETS, *DISKS, *SOAK]
