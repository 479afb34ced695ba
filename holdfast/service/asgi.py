"""The application that a web server runs."""

import os
import tempfile

from django.core.asgi import get_asgi_application

from holdfast.service.body_limit import BodyLimit
from holdfast.service.home import this_home

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "holdfast.service.settings")
application = BodyLimit(get_asgi_application())
# Django spools what comes in with `tempfile`, before any setting of its own: on the home's disk, /tmp may be memory.
this_home().make()
tempfile.tempdir = str(this_home().incoming)
