"""The console: one catalogue of operations behind the pages, the HTTP API and the command line.

It may import every package below it; it must not depend on brokers, whose requests it sends, nor on Spark.
"""
