"""Name server: topic routes, registered by brokers, queried by clients; in its own process or a broker's.

May import `tiermq.remoting` and, for its only file, `tiermq.files`.
Must not depend on brokers' insides or stores: a broker is known by its registration only.
"""
