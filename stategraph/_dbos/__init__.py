"""What DBOSRunner is made of: each module has one part of what it takes to give turns to DBOS."""
