"""The key index: hash files that lead from `topic#key` to the places of records in the commit log.

Owns the index file format, rolling, loading, querying and cleaning of index files.
May import `tiermq.message` (hashes) and `tiermq.files`. Must never know the network.
"""
