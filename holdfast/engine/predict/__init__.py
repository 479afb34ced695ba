"""Uses a finished model, in a child process: labels, answers, or what a search finds. Loads safetensors only."""
