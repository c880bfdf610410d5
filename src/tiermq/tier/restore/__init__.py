"""Metadata rebuilt from the tier: restore, discovery of queues and indexes, import from RocketMQ.

May import `queue`, `index`, `metadata` and below. Must not depend on writers or on the store.
"""
