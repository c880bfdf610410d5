"""Deletion from the tier: expiry, size limits, deleted topics, orphans.

May import `flat`, `metadata` and below. Must not depend on fetch or dispatch.
"""
