"""Broker: topics, groups and offsets over a store, served to RocketMQ's clients over the wire.

Must not depend on Spark, nor on bytes of any file format.
"""
