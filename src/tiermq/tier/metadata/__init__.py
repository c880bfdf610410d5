"""Metadata of the tier: a small database on the broker's disk, and manifests in the tier from which it can be rebuilt.

May import the names and drivers of the tier, and the message, consume-queue and store rooms for their formats.
Must never know flat files, dispatch or fetch: they call this, not the other way round.
"""
