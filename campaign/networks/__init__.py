"""Networks that fail, between real processes and real servers, by schedules that follow from a seed.

proxy       our own TCP proxy: delays, throttles, holds, cuts in the middle of a frame, truncates, refuses
faults      what can be done to a network, and schedules of it; the shortest schedule that still fails
scheduled_part  what all parts share: rounds, findings, the shortest schedule
traffic     producers and consumers that live with any network, and remember what they were promised
clients     between clients and a broker
name_servers  between a broker and its name servers
buckets     between a broker and S3
pipelines   between Spark and S3
java        between RocketMQ's own Java client and a broker
part        all of them as parts of the campaign
"""
