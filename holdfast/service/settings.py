"""Django's settings. What differs between installations comes from HOLDFAST_* variables, which `serve` sets."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.core.env import service_variable
from holdfast.core.errors import RequestError
from holdfast.service.home import this_home

# With 4 processes claiming 400 jobs, the defaults gave 23 "database is locked" errors; these gave none, 5 times faster.
_PRAGMAS = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA busy_timeout=20000; PRAGMA foreign_keys=ON;"


def database_settings(url: str, embedded: Path) -> dict[str, Any]:
    """Django's entry for a PostgreSQL URL; the embedded SQLite when there is no URL."""
    if not url:
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(embedded),
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": _PRAGMAS},
        }
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql") or not parts.path.strip("/"):
        raise RequestError(
            "HOLDFAST_DATABASE_URL is not valid",
            found=f"it starts with {parts.scheme or 'no scheme'}://",
            try_next=("HOLDFAST_DATABASE_URL=postgresql://USER:PASSWORD@HOST:5432/NAME",),
        )
    # No CONN_MAX_AGE: under ASGI each request has its own thread, whose connection is never used again.
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.strip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "OPTIONS": {"connect_timeout": 5, **dict(parse_qsl(parts.query))},
    }


HOME = this_home()
SECRET_KEY = service_variable("SECRET_KEY") or HOME.secret_key()
if len(SECRET_KEY) < 32 or len(set(SECRET_KEY)) < 8:
    raise RequestError(
        "HOLDFAST_SECRET_KEY is too easy to guess",
        found=f"it has {len(SECRET_KEY)} characters, {len(set(SECRET_KEY))} of them different",
        try_next=(
            "python -c 'import secrets; print(secrets.token_urlsafe(50))'",
            "leave it unset: then a key is created in the home folder",
        ),
    )
DEBUG = False
ALLOWED_HOSTS = [host for host in service_variable("HOSTS", "localhost,127.0.0.1,[::1]").split(",") if host]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "ninja",  # serves its own copy of the API reference's assets
    "holdfast.service.jobs",
    "holdfast.service.pages",
]
MIDDLEWARE = [
    "holdfast.service.security.SecurityHeaders",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "holdfast.service.urls"
ASGI_APPLICATION = "holdfast.service.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {"default": database_settings(service_variable("DATABASE_URL"), HOME.database)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]
AUTHENTICATION_BACKENDS = ["holdfast.service.jobs.limits.LimitedBackend"]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"
MESSAGE_TAGS = {25: "good", 30: "warn", 40: "bad"}  # success, warning, error: classes of the stylesheet

# Behind TLS (HOLDFAST_TLS=1) cookies travel over TLS only; on loopback a browser has no other way than plain HTTP.
TLS = service_variable("TLS") == "1"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = TLS
SECURE_HSTS_SECONDS = 31_536_000 if TLS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = False  # that is for the owner of the whole domain to decide
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if TLS else None
CSRF_TRUSTED_ORIGINS = [f"https://{host}" for host in ALLOWED_HOSTS] if TLS else []
# Without TLS the service is for loopback or a trusted network, where browsers have only plain HTTP.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]  # about the two lines on subdomains above
SILENCED_SYSTEM_CHECKS += [] if TLS else ["security.W004", "security.W008", "security.W012", "security.W016"]
CSRF_FAILURE_VIEW = "holdfast.service.pages.views.login_views.csrf_failed"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

STATIC_URL = "/static/"
STATIC_ROOT = HOME.static
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}
# Errors go to standard error, which `serve` writes to web.log. Django's default is to mail them.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "line"},
        "nowhere": {"class": "logging.NullHandler"},
    },
    "loggers": {
        "django": {"handlers": ["stderr"], "level": "ERROR"},
        "django.security.DisallowedHost": {"handlers": ["nowhere"], "propagate": False},  # anyone can cause these
        "holdfast": {"handlers": ["stderr"], "level": "WARNING"},
    },
}
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"

# Jobs. A lease expires LEASE_SECONDS after its last renewal; an agent that cannot renew it in time ends its own run.
PUBLIC_URL = service_variable("PUBLIC_URL").rstrip("/")  # for links in messages
BROKER_URL = service_variable("BROKER_URL")  # empty: the dispatcher of `serve` polls the table
BROKER_VISIBILITY_SECONDS = float(service_variable("BROKER_VISIBILITY_SECONDS", "0"))  # of Redis; 0: its default
STORE = service_variable("STORE")  # empty: all machines share the home folder
LEASE_SECONDS = float(service_variable("LEASE_SECONDS", "60"))
RUNS_AT_ONCE = int(service_variable("RUNS_AT_ONCE", "0" if BROKER_URL else "1"))  # next to the pages
PLANS_AT_ONCE = 1  # in addition, so that a plan never waits behind a training

# What one user may take; administrators have no limits, and 0 disables a limit.
RUNS_PER_USER = int(service_variable("RUNS_PER_USER", "4"))  # that train at once
QUEUED_PER_USER = int(service_variable("QUEUED_PER_USER", "100"))
RUN_HOURS = float(service_variable("RUN_HOURS", "168"))  # after this time a run saves and stops
DATASETS_PER_USER = int(service_variable("DATASETS_PER_USER", "500"))
SURVEYS_PER_USER = int(service_variable("SURVEYS_PER_USER", "10"))  # that are read or wait for it
BYTES_PER_USER = int(service_variable("BYTES_PER_USER", str(200 * 1024**3)))  # of datasets and models

# Uploads go to the disk of the home folder, not to /tmp, which may be memory.
FILE_UPLOAD_HANDLERS = ["holdfast.service.jobs.uploads.ToHome"]
UPLOAD_BYTES = int(service_variable("UPLOAD_BYTES", str(2 * 1024**3)))
UPLOAD_ROWS = int(service_variable("UPLOAD_ROWS", "5000000"))
UNPACKED_BYTES = int(
    service_variable("UNPACKED_BYTES", str(8 * 1024**3))
)  # of a gzipped file, a workbook or an archive
SURVEY_SECONDS = int(service_variable("SURVEY_SECONDS", "600"))
SURVEY_MEMORY_BYTES = int(service_variable("SURVEY_MEMORY_BYTES", str(4 * 1024**3)))
FREE_BYTES = int(service_variable("FREE_BYTES", str(1024**3)))  # that an upload must leave on the disk
EMAIL_HOST = service_variable("EMAIL_HOST", "localhost")
EMAIL_PORT = int(service_variable("EMAIL_PORT", "25"))
EMAIL_HOST_USER = service_variable("EMAIL_USER")
EMAIL_HOST_PASSWORD = service_variable("EMAIL_PASSWORD")
EMAIL_USE_TLS = service_variable("EMAIL_TLS") == "1"
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = service_variable("EMAIL_FROM", "holdfast@localhost")
