"""Benchmarks: TierMQ against Java reference loops and against the machine's own limits, as ratios of one run.

`python -m benchmarks.bench_put --json` from the checkout, or `python3 dev.py bench put --json`. Each module has
`run(argv) -> dict` (name, ratios, rates, spread, targets, environment) and a `main`.

`peer` is a side in a process of its own; `java/` holds the reference loops, kept warm by `java_peer`; `limits`
measures memcpy and raw pwrite + fdatasync; `workload` is the one description of the messages; `store_side` is the only
module that calls TierMQ; `harness` alternates rounds; `report` turns rounds into ratios.
"""
