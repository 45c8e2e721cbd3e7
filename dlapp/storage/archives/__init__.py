"""Reading and unpacking of untrusted tar and zip files in bounded memory and time."""
