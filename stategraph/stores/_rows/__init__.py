"""The core of the durable stores: records, saving, loading, and tables."""
