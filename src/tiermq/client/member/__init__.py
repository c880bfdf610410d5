"""Members of a cluster's groups: producers and consumers, in asyncio and for threads.

    tiermq.aconnect(…)   AsyncCluster ─► AsyncProducer, AsyncConsumer, AsyncSimpleConsumer     on the caller's loop
    tiermq.connect(…)    Cluster ─► Producer, Consumer, SimpleConsumer                         the same on a loop thread

Imported by `import tiermq`'s names alone: nothing here may import what only POSIX has.
"""
