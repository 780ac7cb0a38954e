"""`python -m gatedeval_app`: the command `gatedeval`."""

from gatedeval_app import main

if __name__ == "__main__":
    main()
