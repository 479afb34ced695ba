"""The ASGI application that a web server runs."""

import os
import warnings

from django.core.asgi import get_asgi_application

from holdfast.service.body_limit import BodyLimit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "holdfast.service.settings")
# WhiteNoise streams its small files synchronously, which Django would log at every start.
warnings.filterwarnings("ignore", "StreamingHttpResponse must consume synchronous iterators")
application = BodyLimit(get_asgi_application())
