"""Replication: a master's commit log, copied by slaves of TierMQ and of RocketMQ as bytes.

Here are the streams and what they say about the log (what replicas have). Imports stores and below; must not depend on
remoting, brokers and Spark. Tables (topics, groups, offsets) follow over remoting, in `tiermq.broker.replication`.
"""
