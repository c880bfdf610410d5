"""Drivers: one contract for every place that cold bytes can lie in, and the wrappers that are stacked on it.

    Retrying( Metered( [Faulty in tests] ( memory | POSIX | object store ) ) )      `open_driver(url)` builds the stack

A driver knows positions and bytes. It must never know records, units, queues' meaning or manifests' content.
"""
