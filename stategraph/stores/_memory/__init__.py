"""What a memory store does besides saving and loading: imported when it is asked for."""
