"""Searches for the highest request rate that keeps the SLOs, and for placements."""
