"""The key index of the tier: from `topic#key` to the offsets of records in the commit logs of their queues.

Owns the local file that items are written to, its compacted form in the tier, and the service that uploads it.
May import `tiermq.files`, `tiermq.kernel`, `tiermq.message` and the tier's names, driver, metadata and queue. Must not
depend on dispatch or fetch: both are passed in as callbacks.
"""
