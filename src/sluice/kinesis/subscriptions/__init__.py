"""Subscriptions of enhanced fan-out (FLIP-128): events, and what each error means."""
