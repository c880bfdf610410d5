"""What a broker wrote down of its tier, opened by somebody else: a command or a job. Damage is never believed.

Whoever opens the file and closes it again seals it (`metadata_damage`): without a look before, damage would be sealed
as the truth, and the broker would find nothing wrong any more.
"""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

from tiermq.clock import Clock
from tiermq.errors import StoreDamaged
from tiermq.tier.index.index_recovery import INDEX_DIRECTORY, RECORD_NAME
from tiermq.tier.metadata.metadata_damage import damage_of, is_put_away
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.tier_config import TierConfig

NOT_REPLACED = "it was damaged, and has not been read from the tier again yet"


def damaged_metadata(path: Path, damage: str) -> StoreDamaged:
    """The error, for whoever may not put them away."""
    return StoreDamaged(
        f"{path}: {damage}. It tells what the tier has: move it away and run `tiermq tier restore`, or open "
        "the store once with tierDispatchEnable=true"
    )


def require_sound_metadata(root: str | PathLike[str]) -> Path:
    """Where a store directory's are; perhaps there are none yet. Raises StoreDamaged when they are damaged, or gone."""
    config = TierConfig(store_path_root_dir=fspath(root))
    path = config.metadata_path
    damage = damage_of(path, config.root_path / INDEX_DIRECTORY / RECORD_NAME)
    if damage or is_put_away(path):
        raise damaged_metadata(path, damage or NOT_REPLACED)
    return path


def open_known_metadata(root: str | PathLike[str], clock: Clock | None = None) -> MetadataStore:
    """A store directory's, which must be there. Raises StoreDamaged, and what `MetadataStore` raises."""
    path = require_sound_metadata(root)
    if not path.is_file():
        raise StoreDamaged(f"{path}: expected what a broker knows of its tier, found no such file")
    return MetadataStore(path, clock=clock)


def open_new_metadata(root: str | PathLike[str]) -> MetadataStore:
    """A store directory's, to be filled from the tier: it may be gone, or put away. Raises StoreDamaged when what is
    there is damaged, and what `MetadataStore` raises."""
    path = TierConfig(store_path_root_dir=fspath(root)).metadata_path
    damage = damage_of(path, path)
    if damage:
        raise damaged_metadata(path, damage)
    path.parent.mkdir(parents=True, exist_ok=True)
    return MetadataStore(path)
