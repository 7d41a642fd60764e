"""Where the next batch ends."""
