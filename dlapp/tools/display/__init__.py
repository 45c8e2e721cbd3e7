"""Output of the commands: lines of text, live displays, and text that is safe for terminals."""
