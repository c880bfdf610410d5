"""Delivery: messages that are stored now and given to their topics later.

Must not depend on the network, the broker or Spark.
"""
