"""The addresses of the pages about data, models, machines and accounts."""

from django.contrib.auth.views import LogoutView
from django.urls import URLPattern, path

from holdfast.service.pages.views import account, datasets, entry, machines, models

urlpatterns: list[URLPattern] = [
    path("datasets/", datasets.show_datasets, name="datasets"),
    path("datasets/new", datasets.new_dataset, name="dataset-new"),
    path("datasets/<int:pk>", datasets.show_dataset, name="dataset"),
    path("datasets/<int:pk>/live", datasets.live_dataset, name="dataset-live"),
    path("datasets/<int:pk>/choose", datasets.choose, name="dataset-choose"),
    path("datasets/<int:pk>/delete", datasets.delete, name="dataset-delete"),
    path("machines/", machines.show_machines, name="machines"),
    path("machines/live", machines.live_machines, name="machines-live"),
    path("hazards/<slug:slug>", machines.show_hazard, name="hazard"),
    path("models/", models.show_models, name="models"),
    path("models/<int:pk>", models.show_model, name="model"),
    path("models/<int:pk>/try", models.try_model, name="model-try"),
    path("models/<int:pk>/promote", models.promote, name="model-promote"),
    path("models/<int:pk>/rename", models.rename, name="model-rename"),
    path("models/<int:pk>/delete", models.delete, name="model-delete"),
    path("account/", account.show_account, name="account"),
    path("account/password", account.change_password, name="password"),
    path("account/tokens", account.make_token, name="token-make"),
    path("account/tokens/<int:pk>/revoke", account.revoke_token, name="token-revoke"),
    path("account/secrets", account.keep_secret, name="secret-keep"),
    path("account/secrets/<int:pk>/remove", account.remove_secret, name="secret-remove"),
    path("account/hooks", account.make_hook, name="hook-make"),
    path("account/hooks/<int:pk>/remove", account.remove_hook, name="hook-remove"),
    path("account/hooks/<int:pk>/test", account.test_hook, name="hook-test"),
    path("login", entry.LogIn.as_view(), name="login"),
    path("logout", LogoutView.as_view(), name="logout"),
    path("once/<str:token>", entry.enter_once, name="once"),
]
