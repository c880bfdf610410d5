"""LocalStore: commit log, consume queues and key index as one store, with dispatch, reads, recovery and cleaning.

May import every room above it in the map. Must never know tiers, Spark or the network.
"""
