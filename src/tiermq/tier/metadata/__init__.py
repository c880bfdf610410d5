"""Metadata of the tier: a small database on the broker's disk, and manifests in the tier from which it can be rebuilt.

May import the names and drivers of the tier, and the packages message, consumequeue and store for their formats.
Must not depend on flat files, dispatch or fetch.
"""
