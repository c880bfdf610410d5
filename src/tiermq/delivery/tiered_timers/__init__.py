"""Tiered timers: messages due so late that they wait in the tier and not on the broker's disk.

Objects by day, hour, minute and second beside the broker's queues, one manifest that lists those that count.
Must not depend on the network, the broker or Spark.
"""
