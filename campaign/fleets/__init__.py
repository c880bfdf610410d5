"""A fleet of brokers, RocketMQ's and TierMQ's, copied into a bucket by Spark, while any of the processes is killed.

load        acknowledged messages of RocketMQ's own producer, which runs through everything
fleet       the processes: brokers, S3, a Spark cluster and the job's driver that see no broker's directory
check       what must be in the tier: each acknowledged message once, in order, by offset, time and key
part        the part of the campaign
"""
