"""The API: everything the pages can do, as REST with an OpenAPI document at /api/openapi.json.

Start with `jobs_api.py`; `schemas.py` has what goes in and out, `api_errors.py` the one shape of every error.
"""

from ninja import NinjaAPI, Swagger
from ninja.operation import Operation

from holdfast import __version__
from holdfast.service.jobs.api.account_api import router as account_router
from holdfast.service.jobs.api.api_errors import answer_errors
from holdfast.service.jobs.api.assets_api import datasets_router, models_router
from holdfast.service.jobs.api.auth import SessionAuth, TokenAuth
from holdfast.service.jobs.api.jobs_api import router as jobs_router
from holdfast.service.jobs.api.jobs_api import workers_router
from holdfast.service.jobs.api.runs_api import router as runs_router
from holdfast.service.jobs.api.strict_json import PlainRenderer, StrictParser


class _Api(NinjaAPI):
    def get_openapi_operation_id(self, operation: Operation) -> str:
        """The name of the function, such as submit_job: generated clients use it, and files may be renamed."""
        return str(operation.view_func.__name__)


api = _Api(
    title="Holdfast",
    version=__version__,
    description="Submit training jobs and follow them. Log in, or send `Authorization: Bearer hfk_...`.",
    docs=Swagger({"persistAuthorization": False, "validatorUrl": None}),
    auth=[TokenAuth(), SessionAuth()],
    parser=StrictParser(),
    renderer=PlainRenderer(),
    urls_namespace="api",
)
answer_errors(api)
for place, router in (
    ("/datasets", datasets_router),
    ("/jobs", jobs_router),
    ("/jobs", runs_router),
    ("/models", models_router),
    ("/workers", workers_router),
    ("", account_router),
):
    api.add_router(place, router)
