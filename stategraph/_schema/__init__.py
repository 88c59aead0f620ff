"""Values against types."""
