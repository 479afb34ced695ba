"""Fills a service's database: `python -m tests.service.seed MODEL COUNT SETTINGS_JSON`; prints the ids of the jobs."""

import json
import random
import sys

from holdfast.service.child_process import set_up


def main(model: str, count: int, given: dict[str, object]) -> None:
    from holdfast.service.first_login import first_user
    from holdfast.service.jobs import leases
    from holdfast.service.jobs.models import Dataset

    owner = first_user("tester")
    dataset, is_new = Dataset.objects.get_or_create(owner=owner, name="words", file_name="words.csv", state="ready")
    if is_new:
        dataset.path.parent.mkdir(parents=True, exist_ok=True)
        dataset.path.write_text(words_csv())
    goal, device = str(given.pop("goal", "model")), str(given.pop("job_device", ""))
    request = {"model": model, "task": "classify", "prove": "never", "batch_size": 8, "threads": 1, **given}
    jobs = [
        leases.submit(owner=owner, name=f"words {at}", dataset=dataset, request=request, goal=goal, device=device)
        for at in range(count)
    ]
    print(json.dumps([job.pk for job in jobs]))


def words_csv(rows: int = 160) -> str:
    """Texts of numbered words; the first word decides the label."""
    draws = random.Random(0)
    lines = ["text,label"]
    for _ in range(rows):
        words = [draws.randrange(1, 100) for _ in range(8)]
        lines.append(" ".join(f"w{word}" for word in words) + "," + "abc"[words[0] % 3])
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    set_up()
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
