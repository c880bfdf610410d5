"""Broker: topics, groups and offsets over a store, served to RocketMQ's clients over the wire.

May import every room above it on the map. Must never know Spark, nor bytes of any file format.
"""
