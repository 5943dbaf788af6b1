"""The command line."""

# The exit code of a program that Ctrl-C ended, as shells and typer have it.
INTERRUPTED = 130
