"""Transactions: half messages, what became of them, and asking producers about those that nobody ended.

May import the store and everything above it on the map. Must never know the network, the broker or Spark.
"""
