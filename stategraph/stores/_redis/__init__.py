"""The parts of the "redis" store: connections, scripts and table."""
