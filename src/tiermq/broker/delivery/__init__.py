"""Delayed messages, timers and transactions, run beside a broker."""
