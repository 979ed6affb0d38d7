"""Models, chips, links, and how long a step takes on them."""
