"""The output of `pumice inspect`: the data of the summary and the page, and the page itself."""
