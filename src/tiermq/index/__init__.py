"""The key index: hash files that map `topic#key` to offsets of records in the commit log.

Owns the index file format, rolling, loading, querying and cleaning of index files.
May import `tiermq.message` (hashes) and `tiermq.files`. Must not depend on the network.
"""
