"""The commit log: append and roll, flush and commit services, the recovery scan.

May import `files`, `kernel` and `message`. Must not depend on topic semantics, consume queues, index or network.
"""
