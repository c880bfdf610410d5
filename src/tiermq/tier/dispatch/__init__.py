"""Dispatch: which messages are copied from the local store into the tier now, and the engine that copies them.

    topic filter ─► plan (pure) ─► step (records, units, index) ─► engine (threads, fairness, outages) ─► proof

May import the packages below it in the tier and the local store's public API. Must not depend on readers or retention.
"""
