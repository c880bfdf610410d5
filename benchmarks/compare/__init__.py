"""`python3 dev.py bench compare`: TierMQ and the real Apache RocketMQ at the same work, in turns, in one run.

work            what a work is: its sides, its physical limit, its target, its size
peer_process    a side in a process of its own that does one round per request
*_works         the works themselves, one module per group
runner, growth  rounds in turns; the same at 1, 4 and 16 times the data
report_files    Markdown, JSON and pictures under `docs/benchmarks/`
"""
