"""Text for errors and logs: values in short, and nothing that may be a secret."""
