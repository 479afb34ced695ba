from typing import Any

import django.db.models.deletion
from django.db import migrations, models

SCOPES = [
    ("read", "read only"),
    ("predict", "read, and ask models"),
    ("submit", "submit and change runs, data and models"),
    ("admin", "everything, also tokens, secrets and hooks"),
]


def keep_rights(apps: Any, schema_editor: object) -> None:
    """Give existing tokens the scope that equals what they could do before."""
    tokens = apps.get_model("jobs", "ApiToken").objects
    tokens.filter(may_write=True).update(scope="admin")
    tokens.filter(may_write=False).update(scope="read")


class Migration(migrations.Migration):
    dependencies = [("jobs", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="apitoken",
            name="maker",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="created_tokens",
                to="jobs.apitoken",
            ),
        ),
        migrations.AddField(
            model_name="apitoken",
            name="scope",
            field=models.CharField(choices=SCOPES, default="submit", max_length=10),
        ),
        migrations.RunPython(keep_rights, migrations.RunPython.noop),
        migrations.RemoveField(model_name="apitoken", name="may_write"),
    ]
