"""Connections: the HTTP client for files, and the ApplicationMaster's control server with its client."""
