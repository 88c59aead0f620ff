"""What stores on servers share: connections for threads, patience, and who writes for whom."""
