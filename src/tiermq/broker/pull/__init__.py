"""Messages go out: pulls, long polling, filters, cold reads, queries."""
