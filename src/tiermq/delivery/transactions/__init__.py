"""Transactions: half messages, their outcome, and checks of open ones with producers.

Must not depend on the network, the broker or Spark.
"""
