"""A broker's role: the HA port of a master, a slave's copy of log and tables, and what operators see of both."""
