"""Consume queues: for each queue of a topic, where its messages lie in the commit log.

Owns the 20-byte units, the ext units beside them, the 46-byte batch units and the table of all queues.
May import `tiermq.kernel` and `tiermq.files`. Must never know the network, nor how a record is encoded.
"""
