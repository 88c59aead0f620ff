"""``python -m stategraph.cli`` is the command as well."""

from stategraph.cli import main

if __name__ == "__main__":
    main()
