"""The API: everything the pages can do, as REST with an OpenAPI document at /api/openapi.json."""

from ninja import NinjaAPI, Swagger

from holdfast import __version__
from holdfast.service.jobs.api.account_api import router as account
from holdfast.service.jobs.api.api_errors import answer_errors
from holdfast.service.jobs.api.assets_api import datasets_router, models_router
from holdfast.service.jobs.api.auth import SessionAuth, TokenAuth
from holdfast.service.jobs.api.jobs_api import router as jobs
from holdfast.service.jobs.api.jobs_api import workers_router
from holdfast.service.jobs.api.runs_api import router as runs
from holdfast.service.jobs.api.strict_json import PlainRenderer, StrictParser

api = NinjaAPI(
    title="Holdfast",
    version=__version__,
    description="Runs that outlive the page and the server. Log in, or send `Authorization: Bearer hfk_...`.",
    docs=Swagger({"persistAuthorization": False, "validatorUrl": None}),
    auth=[TokenAuth(), SessionAuth()],
    parser=StrictParser(),
    renderer=PlainRenderer(),
    urls_namespace="api",
)
answer_errors(api)
for place, router in (
    ("/datasets", datasets_router),
    ("/jobs", jobs),
    ("/jobs", runs),
    ("/models", models_router),
    ("/workers", workers_router),
    ("", account),
):
    api.add_router(place, router)
