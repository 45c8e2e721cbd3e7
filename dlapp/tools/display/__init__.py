"""The output of the commands: lines of text, live displays, and safe text for terminals."""
