"""Enhanced fan-out: subscriptions that push, and the agent that keeps them between batches."""
