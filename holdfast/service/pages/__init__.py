"""The pages: HTML that works without JavaScript, kept up to date by one small script.

A view in `views/` finds rows that its user may see, a `..._page.py` builds one frozen value from them, and a template
draws that value. Pages change nothing themselves: `jobs/` does, as it does for the API. Read `run_views.py` first.
"""
