"""The ApplicationMaster's side of a YARN cluster."""
