"""Timers: messages that are due at a time of their own, in RocketMQ's timer wheel and timer log.

The wheel says which timers are due in which second, the log where their messages lie in the commit log.
May import the store and everything above it on the map. Must never know the network, the broker or Spark.
"""
