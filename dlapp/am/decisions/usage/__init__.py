"""Use of containers: its course over time, and the receipts at the end."""
