"""Plans queries of Kinesis, and controls their agents."""
