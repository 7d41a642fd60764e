"""Dead letters: records that can never be delivered."""
