"""Uses a finished model in a child process: labels, generated answers or search results. Loads safetensors only.

Read `predictor` first. `__main__` processes a file, `stdio_server` answers line by line, `gradio_page` serves a page.
"""
