"""Name server: who serves which topic, told by brokers, asked by clients; alone in a process or beside a broker.

May import every room above it on the map; of those it uses `tiermq.remoting` and, for its one file, `tiermq.files`.
Must never know brokers' insides or stores: a broker is what it says of itself in a registration.
"""
