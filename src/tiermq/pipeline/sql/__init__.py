"""What a query in SQL reads: names of topics, tables of a query, what its conditions prune. No Spark."""
