"""Timers: messages with a delivery time, in RocketMQ's timer wheel and timer log.

The wheel maps a slot to its due timers, the timer log maps timers to commit log offsets.
Must not depend on the network, the broker or Spark.
"""
