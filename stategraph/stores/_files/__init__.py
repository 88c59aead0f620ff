"""The files of stores: where they are, who may write to them, and how SQLite uses them."""
