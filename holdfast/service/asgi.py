"""The application that a web server runs."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "holdfast.service.settings")
application = get_asgi_application()
