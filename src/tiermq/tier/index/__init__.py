"""The key index of the tier: from `topic#key` to the places of records in the commit logs of their queues.

Owns the local file that takes items, its compacted form in the tier, and the service that moves one into the other.
May import `tiermq.files`, `tiermq.kernel`, `tiermq.message` and the tier's names, driver and metadata. Must never know
how messages get into the tier or out of it: both come in as callbacks.
"""
