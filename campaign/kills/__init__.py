"""Real processes that are killed with SIGKILL under load: brokers, object stores, Spark drivers, executors, workers.

brokers     `tiermq serve`, alone or with a tier in a real S3 server, killed while producers and consumers are at it
offloads    the Spark job that fills a tier, whose driver, JVM, executors, workers and object store are killed
processes   who descends from a process, and what it is
part        the parts of the campaign
"""
