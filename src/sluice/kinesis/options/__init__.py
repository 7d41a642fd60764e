"""What the options of the source say."""
