"""Requests: drawn, or read from traces."""
