"""The `tiermq` command: options, progress, tables, JSON, exit codes.

Must not depend on formats: what a command shows, another package has decoded.
"""
