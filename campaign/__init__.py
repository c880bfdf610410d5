"""`python3 dev.py prove`: tries to break what TierMQ promises, for hours, by a seed that can be repeated.

part            what a part of the campaign is: rounds by seed, counts, findings
simulation/     store, tier, dispatcher, retention and readers over a simulated clock, file layer and object store
power_cuts/     a real file system image, copied under load
kills/          brokers, Spark drivers, executors and object stores, killed under load
replicas/       three replicas of a broker in network namespaces: killed, stopped, cut off, without their bucket
fleets/         RocketMQ's and TierMQ's brokers copied into a bucket by a Spark cluster, all of them killed
disks/          no room, errors, short writes, failing syncs, vanished files, flipped bits
networks/       partitions, half-open and slow connections, frames cut in the middle
hostile/        fuzzing with kept corpora, floods, bombs, paths, secrets
soak/           an hour of mixed load, the bucket checked at its end
runner, report  seeds, progress, resuming; what was done and found

The servers and helpers of the tests are the campaign's, too.
"""
