"""`python -m fedmc`: the command line."""

from fedmc.cli import main

if __name__ == "__main__":
    main()
