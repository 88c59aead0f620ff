"""The parts of the "redis" store: connections, scripts, records and table."""
