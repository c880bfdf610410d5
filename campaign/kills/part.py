"""All kills as parts of the campaign."""

from __future__ import annotations

from campaign.kills.brokers import BrokerKills
from campaign.kills.offloads import OffloadKills
from campaign.part import Part

PARTS: list[Part] = [BrokerKills(tiered=False), BrokerKills(tiered=True), OffloadKills()]
