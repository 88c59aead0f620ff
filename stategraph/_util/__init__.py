"""Small tools that know nothing of graphs."""
