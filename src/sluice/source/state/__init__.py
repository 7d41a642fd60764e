"""What is known of each split ahead of the last batch."""
