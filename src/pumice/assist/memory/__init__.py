"""Memory: texts in a file, found again by meaning and by words, with their places."""
