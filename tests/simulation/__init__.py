"""Worlds to test in: a file system in memory whose disk can fill, whose calls can fail, whose power can be cut."""
