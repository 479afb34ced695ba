"""The application that a web server runs."""

import os

from django.core.asgi import get_asgi_application

from holdfast.service.body_limit import BodyLimit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "holdfast.service.settings")
application = BodyLimit(get_asgi_application())
