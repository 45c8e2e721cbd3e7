"""Checks of dlapp-doctor: one module for each part of the installation."""
