"""Controller: which broker of a set is master, decided by compare-and-set on one object per set in the bucket.

May import `tiermq.remoting` and, for its objects, the drivers and documents of `tiermq.tier`.
Must not depend on brokers' insides or stores: a broker is known by its registration and its heartbeats only.
"""
