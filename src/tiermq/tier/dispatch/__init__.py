"""Dispatch: what is to be copied from the local store into the tier now, and the engine that does it.

    topic filter ─► plan (pure) ─► execute (records, units, index) ─► engine (threads, fairness, outages) ─► proof

May import everything below it in the tier and the local store's public surface. Must never know readers or retention.
"""
