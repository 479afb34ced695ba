"""The API: everything the pages can do, as REST with an OpenAPI document at /api/openapi.json."""

from ninja import NinjaAPI, Swagger

from holdfast import __version__
from holdfast.service.jobs.api.account import router as account
from holdfast.service.jobs.api.auth import SessionAuth, TokenAuth
from holdfast.service.jobs.api.datasets import router as datasets
from holdfast.service.jobs.api.errors import answer_errors
from holdfast.service.jobs.api.jobs import router as jobs
from holdfast.service.jobs.api.json_text import PlainRenderer, StrictParser
from holdfast.service.jobs.api.machines import router as machines
from holdfast.service.jobs.api.models import router as models
from holdfast.service.jobs.api.runs import router as runs

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
    ("/datasets", datasets),
    ("/jobs", jobs),
    ("/jobs", runs),
    ("/models", models),
    ("/workers", machines),
    ("", account),
):
    api.add_router(place, router)
