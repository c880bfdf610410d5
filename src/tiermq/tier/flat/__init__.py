"""Flat files: what a queue's commit log and consume queue look like in the tier, as append-only runs of segments.

May import `tier.names`, `tier.driver` and `tier.metadata`. Must never know the local store, the index or readers.
"""
