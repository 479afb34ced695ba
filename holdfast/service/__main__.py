"""Django's own commands: `python -m holdfast.service migrate`, `check --deploy`, `createsuperuser` and others."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "holdfast.service.settings")
    execute_from_command_line(["holdfast.service", *sys.argv[1:]])
