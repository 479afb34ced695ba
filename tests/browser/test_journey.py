"""From the first login to two compared models, with a crash on the way."""

import re
import time

import psutil
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1500)]

_SOON, _LONG = 60_000, 600_000  # milliseconds
_STEPS = 600


def test_first_login_upload_survey_start_crash_finish_try_and_compare(browser, service, tmp_path):
    page = browser.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.set_default_timeout(_SOON)

    page.goto(service.link)
    page.get_by_role("button", name="Log in as").click()
    page.get_by_role("heading", name="Choose a password").wait_for()
    page.goto(service.url)
    page.get_by_role("link", name="Upload a dataset").click()

    _upload(page, tmp_path / "words.csv")
    page.get_by_role("heading", name="Labels").wait_for(timeout=_LONG)
    page.get_by_role("link", name="New run").click()

    _ask(page, name="first", steps=_STEPS)
    page.get_by_role("button", name="Start training").wait_for(timeout=_LONG)
    assert page.get_by_role("heading", name="The plan").is_visible()
    page.get_by_role("button", name="Start training").click()

    # From here on the page is not loaded again: a mark that a reload would wipe stays.
    first = int(re.search(r"/runs/(\d+)", page.url).group(1))
    page.evaluate("window.notReloaded = true")
    _wait_for_step(page, 30)
    _kill_engine(service.home / "runs" / str(first))
    page.get_by_role("heading", name=re.compile("Attempt 1.*failed")).wait_for(timeout=_LONG)
    assert page.get_by_text(re.compile("SIGKILL|killed", re.IGNORECASE)).first.is_visible()
    page.get_by_role("link", name="Try the model").wait_for(timeout=_LONG)
    assert page.evaluate("window.notReloaded") is True
    assert page.get_by_role("img", name=re.compile("^Loss")).is_visible()
    assert "2 attempts" in page.locator("#run-sentence, #run-progress").all_inner_texts()[1].replace("\n", " ")

    page.get_by_role("link", name="Try the model").click()
    page.get_by_role("textbox", name=re.compile("text", re.IGNORECASE)).first.fill("w1 w2 w3")
    page.locator("#try-form button").click()
    page.locator("#try-answer table, #try-answer blockquote").wait_for(timeout=_LONG)

    page.goto(f"{service.url}/runs/{first}")
    page.get_by_role("link", name="Retry with changes").click()
    _ask(page, name="second", steps=40)
    page.get_by_role("button", name="Start training").click(timeout=_LONG)
    page.get_by_role("link", name="Try the model").wait_for(timeout=_LONG)

    page.goto(service.url)
    page.get_by_role("checkbox", name="Compare first").check()
    page.get_by_role("checkbox", name="Compare second").check()
    page.get_by_role("button", name="Compare selected").click()
    page.get_by_role("heading", name="Settings that differ").wait_for()
    assert page.locator("svg .line").count() == 2
    assert page.get_by_role("row", name=re.compile("max steps")).inner_text().split()[-2:] == ["40", f"{_STEPS}"]
    assert problems == []
    page.close()


def _upload(page, path):
    path.write_text(
        "text,label\n" + "".join(f"w{row % 97 + 1} w{row % 7 + 1},{'abc'[row % 3]}\n" for row in range(300))
    )
    page.get_by_label("File").set_input_files(path)
    page.get_by_role("button", name="Upload").click()


def _ask(page, *, name, steps):
    page.get_by_role("textbox", name="Name", exact=True).fill(name)
    page.get_by_label("model", exact=True).fill("tiny")
    page.get_by_label("batch size", exact=True).fill("8")
    for group, label, value in (
        ("Training", "max steps", str(steps)),
        ("Machine", "threads", "1"),
    ):
        fold = page.locator(f"details:has(> summary:text-is('{group}'))")
        if not fold.evaluate("one => one.open"):
            fold.locator("summary").click()
        page.get_by_label(label, exact=True).fill(value)
    page.get_by_role("button", name="Plan the run").click()


def _wait_for_step(page, step):
    """Read the page as a person does: its policy forbids a script to wait in it."""
    until = time.monotonic() + _LONG / 1000
    while time.monotonic() < until:
        found = re.search(r"step (\d+) of", page.locator("#run-progress").inner_text())
        if found and int(found.group(1)) > step:
            return
        time.sleep(0.2)
    raise AssertionError(f"step {step} was never shown")


def _kill_engine(run):
    """End the training process itself, as the kernel would."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "holdfast.engine" in words and any(str(run / "attempts") in word for word in words):
                process.kill()
                return
        time.sleep(0.1)
    raise AssertionError("no training process was found")
