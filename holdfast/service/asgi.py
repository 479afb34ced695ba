"""The application that a web server runs."""

import os
import warnings

from django.core.asgi import get_asgi_application

from holdfast.service.body_limit import BodyLimit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "holdfast.service.settings")
# WhiteNoise hands its files over piece by piece and not asynchronously; they are small, and each start would log it.
warnings.filterwarnings("ignore", "StreamingHttpResponse must consume synchronous iterators")
application = BodyLimit(get_asgi_application())
