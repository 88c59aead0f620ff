"""What stores of rows share."""
