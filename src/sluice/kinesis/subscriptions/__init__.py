"""Subscriptions of enhanced fan-out (FLIP-128): their events, and the reaction to each error."""
