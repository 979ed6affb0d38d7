"""Runs the cells of a plan and keeps what came out."""
