"""Views: each builds one small frozen value for its template."""
