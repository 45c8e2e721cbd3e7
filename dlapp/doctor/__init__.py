"""What dlapp-doctor checks: one module for each part of the installation."""
