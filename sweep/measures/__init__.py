"""What one run gives back, and every measure of it."""
