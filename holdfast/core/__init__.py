"""Values and files that every other part shares. Standard library only; imports in milliseconds."""
