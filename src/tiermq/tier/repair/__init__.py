"""Repair of a tier: rebuilds what can be derived from other data, and keeps the bytes that it replaces.

May import the whole tier package. Must not depend on the network or Spark: a job sends actions to its executors.
"""
