"""The `tiermq` command: options, progress, tables, JSON, exit codes.

May import every room above it in the map. Must never know formats: what a command shows, a room has decoded.
"""
