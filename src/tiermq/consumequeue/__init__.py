"""Consume queues: for each queue of a topic, the offsets of its messages in the commit log.

Owns the 20-byte units, the ext units beside them, the 46-byte batch units and the table of all queues.
May import `tiermq.kernel` and `tiermq.files`. Must not depend on the network or the record encoding.
"""
