"""Flat files: a queue's commit log and consume queue in the tier, as append-only sequences of segments.

May import `tier.names`, `tier.driver`, `tier.metadata`, `tier.queue` and request types of `tier.index`. Must not depend
on the local store or on readers.
"""
