"""`df.write` and `df.writeStream` into a topic."""
