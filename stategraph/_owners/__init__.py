"""Who owns which run."""
