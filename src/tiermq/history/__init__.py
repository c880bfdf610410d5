"""Hot and cold messages as one read-only history, in queue order, each message once. Runs without Spark."""
