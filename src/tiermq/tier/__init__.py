"""Tier: tiered storage: drivers, segments, flat files, metadata, dispatch, fetch, index, retention.

May import every package above it on the map (up to `tiermq.store`) and the top-level modules.
Imports inside: names < driver < metadata < queue < flat < index < dispatch, fetch < restore < retention < tiered_store.
Must not depend on Spark or the network: only a `TierDriver` opens connections.
"""
