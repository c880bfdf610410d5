"""`tiermq tier`: commands that look into a tier, verify, repair and restore it.

Entry point: `commands.tier`. Must not depend on formats: what a command shows, another package has decoded.
"""
