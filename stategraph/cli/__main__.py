"""Run the command as ``python -m stategraph.cli``."""

from stategraph.cli import main

if __name__ == "__main__":
    main()
