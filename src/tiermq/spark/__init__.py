"""The data pipeline on Spark: a source and a sink for DataFrames, and the jobs that move and tend the history."""
