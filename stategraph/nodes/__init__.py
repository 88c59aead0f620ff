"""What a node may be. Today: any function of a State."""
