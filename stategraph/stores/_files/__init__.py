"""The files of stores: paths, access by other users, SQLite, forks, and results of nodes."""
