"""Policies, routers and systems, and the engine that runs them."""
