"""Repair of a tier: rebuilds what can be told from something else, and keeps what it replaces.

May import the whole tier room. Must never know the network, nor Spark; whoever has many machines sends actions to them.
"""
