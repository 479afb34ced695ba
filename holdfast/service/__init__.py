"""The job service: datasets, jobs and models of several people, as pages and as an API (Django, django-ninja).

Jobs wait in a table. `dispatcher.py` (or, with a broker, `celery_worker.py`) claims them by `jobs/leases.py` and starts
an `agent.py` for each, which supervises the run and renews the lease. With HOLDFAST_STORE, `replicator.py` copies run
folders to `object_store.py`, so that machines need no common disk. Read `jobs/models.py` and `jobs/leases.py` first.
"""
