"""The stream as a log: calls, records, and the rows made from them."""
