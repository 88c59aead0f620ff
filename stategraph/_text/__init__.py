"""Text for errors, logs and screens: values in short, and nothing that may be a secret."""
