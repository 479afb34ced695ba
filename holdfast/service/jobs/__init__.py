"""Jobs, datasets and models: the rows, who may see them, every change of them, and the API in `api/`."""
