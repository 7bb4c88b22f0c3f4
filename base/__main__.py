"""`python -m kernelcrew` is the command line."""

from kernelcrew.runs.cli import main

if __name__ == "__main__":
    main()
