"""The stream as a log: calls, records, and what becomes of them."""
