"""One read-only view of a store directory that another process may be writing: log, queues, index.

`check`, `stat`, `dump`, jobs and scans read a store through it. Nothing is locked or written.
May import what `tiermq.store` may; must not depend on the parts of a running store (`wiring`, `local_store`).
"""
