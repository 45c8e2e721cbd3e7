"""Commands on applications: submit, inspect, end, remove."""
