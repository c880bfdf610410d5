"""RocketMQ 5's gRPC protocol (`apache.rocketmq.v2`): HTTP/2 on the broker's loop, messages, signatures.

Imports: what `remoting` may import, and `remoting`. Must not depend on brokers, stores and Spark.
"""
