"""All disk trouble as parts of the campaign."""

from __future__ import annotations

from campaign.disks.brokers import BrokerGround
from campaign.disks.damage import DamagePart, blank, flip, vanish
from campaign.disks.far_timers import FarTimerGround
from campaign.disks.ground import Ground
from campaign.disks.leases import LeaseGround
from campaign.disks.stores import StoreGround
from campaign.disks.tiers import TierGround
from campaign.disks.timers import TimerGround
from campaign.disks.troubles import FAULTS, TroublePart
from campaign.part import Part

GROUNDS: list[Ground] = [
    StoreGround(killed=False),
    TierGround(cold=True),
    BrokerGround(),
    StoreGround(killed=True),
    TierGround(cold=False),
    TimerGround(killed=False),
    TimerGround(killed=True),
    StoreGround(killed=True, ext=True),
    FarTimerGround(),
    LeaseGround(),
]
LENIENT: list[Ground] = [
    StoreGround(killed=False, strict=False),
    StoreGround(killed=True, strict=False),
    *GROUNDS[1:3],
    *GROUNDS[5:7],
    StoreGround(killed=True, strict=False, ext=True),
    FarTimerGround(),
    LeaseGround(),
]
PARTS: list[Part] = [
    DamagePart("bits", "bits flipped in every kind of file", [flip], GROUNDS),
    DamagePart("sectors", "sectors of every kind of file read as zeros", [blank], LENIENT),
    DamagePart("vanished", "files of every kind are gone", [vanish], GROUNDS),
    TroublePart("no-room", "a disk fills up under a broker", ["no room"]),
    TroublePart("failing-calls", "syncs, writes and reservations of a broker fail", sorted(FAULTS)),
    TroublePart("read-only", "a file system goes read-only under a broker", ["read-only"]),
]
