"""Parts of a step, done at the same time."""
