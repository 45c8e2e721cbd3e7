"""The commands' side of the embedded engine: submission, views, and the ends that users request."""
