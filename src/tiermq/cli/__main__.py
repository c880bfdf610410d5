"""`python -m tiermq.cli`: the same as `tiermq`."""

from tiermq.cli.main import main

main()
