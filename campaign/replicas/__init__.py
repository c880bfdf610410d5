"""Three replicas of one broker as processes, each in a network namespace of its own, while everything fails.

namespaces  network namespaces, the links between them, and how they are cut
cluster     the processes: replicas, name server, S3; what they report, and what happens to them
ledger      what clients were promised and have seen: writers, readers, and the check of their history
part        the part of the campaign: a schedule of faults by a seed, and what must hold in the end
"""
