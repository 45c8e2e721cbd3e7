"""Files that a client of YARN stores on its own machine."""
