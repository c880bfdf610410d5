"""Reading from the tier: windows of messages, their cache, read-ahead, time and key lookups.

May import `tier.flat`, `tier.metadata` and `tier.index`. Must not write to the tier or depend on the network.
"""
