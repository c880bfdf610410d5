"""Slave acting master: while a master is away, its slave with the smallest id reads and delivers for it.

May import the rest of `tiermq.broker`; only `broker.py` imports it. It must not depend on elections: roles stay.
"""
