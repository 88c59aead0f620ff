"""Encoding: values, States and pauses as bytes, and back."""
