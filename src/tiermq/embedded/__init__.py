"""Stores and history for Python programs: what `tiermq.LocalStore`, `tiermq.TieredStore`, `tiermq.AsyncStore` and
`tiermq.read` are. Thin: the work is that of `tiermq.store`, `tiermq.tier` and `tiermq.history`. May import anything but
Spark, the console and commands; of the broker only its tables of offsets and its rule for delays.
"""
