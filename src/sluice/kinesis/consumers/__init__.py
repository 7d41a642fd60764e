"""Enhanced fan-out's consumers: which there are, and which are ours."""
