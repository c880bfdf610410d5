"""`spark.read` and `spark.readStream` of hot and cold messages."""
