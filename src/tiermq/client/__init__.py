"""A cluster from outside: routes, sends, pulls, and its topics as a history.

May import `tiermq.remoting`, `tiermq.namesrv` (values) and `tiermq.history`. Must never know brokers' insides or Spark.
"""
