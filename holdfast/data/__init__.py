"""Files in, facts and prepared shards out. Imports no torch."""
