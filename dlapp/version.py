"""Version of dlapp."""

__version__ = "0.1.0"
