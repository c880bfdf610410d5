"""Tier: the cold half of the store: drivers, segments, flat files, metadata, dispatch, fetch, index, retention.

May import every room above it on the map (up to `tiermq.store`) and the modules that stand alone.
Inside the room imports go names < driver < metadata < flat < index < dispatch, fetch < retention < tiered_store.
Must never know Spark or the network: bytes leave through a `TierDriver`, and nothing else opens a connection.
"""
