"""Jobs: the rows, who may see them, who runs them, the API."""
