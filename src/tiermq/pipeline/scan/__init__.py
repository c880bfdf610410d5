"""What to scan, as typed values, and how that becomes a plan over a history. Text options belong to `tiermq.spark`."""
