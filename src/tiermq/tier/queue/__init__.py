"""Readers of one queue in the tier: its segments, units and records, with every rule about damage defined once.

May import names, drivers and metadata values. Must not depend on writers (`flat`), on fetch, or on maintenance.
"""
