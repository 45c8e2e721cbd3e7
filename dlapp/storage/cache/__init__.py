"""Input that stays on a node."""
