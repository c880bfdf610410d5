"""Verification of a tier: plan, tasks that run anywhere, report. Reads only.

May import `queue`, `index`, `metadata` and below. Must not depend on the store or on repair.
"""
