"""What the tables of a run tell: rankings, choices of cells, comparisons."""
