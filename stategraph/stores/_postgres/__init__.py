"""What the "postgres" store is made of: connections, tables and statements."""
