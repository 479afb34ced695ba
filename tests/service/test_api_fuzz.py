"""schemathesis over the OpenAPI document, through the ASGI application: no input causes a 5xx.

A few examples of each operation in `make test`; HOLDFAST_FUZZ_EXAMPLES=500 tries more.
"""

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from holdfast.service.asgi import application

EXAMPLES = int(os.environ.get("HOLDFAST_FUZZ_EXAMPLES", "4"))
_ANSWER_SECONDS = 100  # by default 10, which a crowded machine does not always keep


def operations():
    asked = {"headers": {"Host": "localhost"}, "timeout": _ANSWER_SECONDS}
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", app=application, **asked)
    return [result.ok() for result in schema.get_all_operations()]


OPERATIONS = operations()


@pytest.mark.timeout(0 if EXAMPLES > 20 else 120)
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_nothing_that_is_sent_breaks_the_service(world, operation):
    known = {
        "job_id": world.job.pk, "dataset_id": world.dataset.pk, "model_id": world.model.pk, "hook_id": world.hook.pk,
    }  # fmt: skip
    token = world.texts["ada"]

    @given(case=operation.as_strategy())
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=EXAMPLES < 20,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    def run(case):
        for is_real in (True, False) if case.method != "DELETE" else (False,):
            if is_real:
                real = {name: known[name] for name in case.path_parameters or {} if name in known}
                if not real:
                    continue
                case.path_parameters = {**case.path_parameters, **real}
            response = case.call(headers={"Authorization": f"Bearer {token}"}, timeout=_ANSWER_SECONDS)
            assert response.status_code < 500, (case.as_curl_command(), response.text)
            case.validate_response(response, checks=(content_type_conformance, response_schema_conformance))

    run()
