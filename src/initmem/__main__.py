"""`python -m initmem`."""

from initmem.cli import main

if __name__ == "__main__":
    main()
