"""LocalStore: commit log, consume queues and key index as one store, with dispatch, reads, recovery and cleaning.

May import every package above it in the map. Must not depend on tiers, Spark or the network.
"""
