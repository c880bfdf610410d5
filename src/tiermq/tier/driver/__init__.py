"""Drivers: one contract for every back end, and the wrappers that are stacked on it.

    Retrying( [Faulty in tests] ( memory | POSIX | object store ) )      `open_driver(url)` builds the stack

A driver handles positions and bytes. It must not depend on records, units, queues or manifests.
"""
