"""What the "redis" store is made of: connections, keys and scripts."""
