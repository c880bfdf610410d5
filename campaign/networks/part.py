"""All of `networks` as parts of the campaign."""

from __future__ import annotations

from campaign.networks.buckets import BucketsPart
from campaign.networks.clients import ClientsPart
from campaign.networks.java import JavaPart
from campaign.networks.name_servers import NameServersPart
from campaign.networks.pipelines import PipelinesPart
from campaign.part import Part

PARTS: list[Part] = [ClientsPart(), NameServersPart(), BucketsPart(), PipelinesPart(), JavaPart()]
