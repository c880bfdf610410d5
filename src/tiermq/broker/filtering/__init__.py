"""Filtering: which messages a group gets, decided by this broker: by tag, or by an SQL92 expression over properties.

May import the message room and the broker's subscriptions. Must never know connections, stores or files.
"""
