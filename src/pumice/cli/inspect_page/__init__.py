"""What `pumice inspect` shows: the data behind the summary and the page, and the page itself."""
