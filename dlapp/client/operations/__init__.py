"""The operations of `dlapp.client.Client`, by subject; each module has a base class of it."""
