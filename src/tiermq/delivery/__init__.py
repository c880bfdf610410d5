"""Delivery: messages that are stored now and given to their topics later.

May import the store and everything above it on the map. Must never know the network, the broker or Spark.
"""
