"""The pages' addresses."""

from django.urls import URLPattern, path

from holdfast.service.pages.views import comparison, new_run, run, runs

urlpatterns: list[URLPattern] = [
    path("", runs.show_runs, name="runs"),
    path("runs/live", runs.live_runs, name="runs-live"),
    path("runs/new", new_run.new_run, name="run-new"),
    path("runs/compare", comparison.show_comparison, name="compare"),
    path("runs/<int:job_id>", run.show_run, name="run"),
    path("runs/<int:job_id>/live", run.live_run, name="run-live"),
    path("runs/<int:job_id>/start", run.change_run, {"action": "start"}, name="run-start"),
    path("runs/<int:job_id>/stop", run.change_run, {"action": "stop"}, name="run-stop"),
    path("runs/<int:job_id>/resume", run.change_run, {"action": "resume"}, name="run-resume"),
    path("runs/<int:job_id>/retry", run.retry_run, name="run-retry"),
    path("runs/<int:job_id>/delete", run.delete_run, name="run-delete"),
    path("runs/<int:job_id>/report", run.show_report, name="run-report"),
    path("runs/<int:job_id>/model.zip", run.download_model, name="run-model"),
    path("runs/<int:job_id>/attempts/<int:number>/<path:name>", run.show_evidence, name="run-evidence"),
]
