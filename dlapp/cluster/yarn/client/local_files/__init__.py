"""The files that a client of YARN keeps on its own machine."""
