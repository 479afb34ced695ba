"""Pages: what people see and press."""
