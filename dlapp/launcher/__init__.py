"""Submission: an application is checked against its engine and the world, its workspace packed, and submitted.

`checks` looks at inputs, outputs and scripts, `workspace.pack` packs the workspace, `origin` describes an application
from an earlier one, and `submit` executes all steps and outputs the lines that ``dlapp-launcher`` prints. What a
properties file means is in `dlapp.application`.
"""
