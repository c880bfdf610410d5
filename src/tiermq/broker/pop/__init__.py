"""POP: check points, receipts, order, revival."""
