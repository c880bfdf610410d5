"""Reading from the tier: which store answers, windows of messages, their cache, read-ahead, time and key look-ups.

May import `tier.flat`, `tier.metadata` and `tier.index`. Must never write to the tier, nor know the network.
"""
