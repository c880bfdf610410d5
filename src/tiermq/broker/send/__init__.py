"""Sends, batches, replies, messages sent back, and recalls."""
