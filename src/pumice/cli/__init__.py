"""The command line."""

# The exit code of a program that Ctrl-C ended, as shells and typer have it.
INTERRUPTED = 130
# And of one that ended when SIGTERM asked it to.
TERMINATED = 143
