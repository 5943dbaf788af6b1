"""`python -m pumice`: the same as the command `pumice`."""

from pumice.cli.main import main

if __name__ == "__main__":
    main()
