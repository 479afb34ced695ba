"""The job service: runs that outlive the page and the server. Only this package knows Django and Celery."""
