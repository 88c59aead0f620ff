"""The parts of the "postgres" store: connections, schema and table."""
