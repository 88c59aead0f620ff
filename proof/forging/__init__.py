"""A store with all kinds of runs, changes that somebody makes to it without the key, and what may come of them."""
