"""Values in the words of a user's program, and variables of the submitter that it gets."""
