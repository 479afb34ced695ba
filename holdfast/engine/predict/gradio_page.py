"""A page to try a finished model: `python -m holdfast.engine.predict.gradio_page`.

Serves this machine only. Reads a `DemoJob` as JSON from standard input.
"""

import faulthandler
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.errors import HoldfastError, render_error
from holdfast.core.records import DemoJob
from holdfast.data.shards import open_array, open_tokens, read_manifest
from holdfast.engine.process_setup import prepare_process

_LOOPBACK = "127.0.0.1"
_EXAMPLES = 5
_LONGEST_EXAMPLE = 600
_MAX_LABELS = 10


def main() -> int:
    """Load the model and serve its page until asked to stop; return the exit code."""
    faulthandler.enable()
    prepare_process()
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # no telemetry
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    job = msgspec.json.decode(sys.stdin.read(), type=DemoJob)
    try:
        page = build_page(job)
    except HoldfastError as error:
        print(render_error(error), file=sys.stderr)
        return error.exit_code
    serve(page, job.port)
    return 0


def serve(page: Any, port: int) -> None:
    """Serve a page on this machine. Gradio's own launch fails where the machine is slow to answer."""
    fonts = ["system-ui", "sans-serif"]  # local fonts: none are downloaded
    gradio, uvicorn, fastapi = (import_module(name) for name in ("gradio", "uvicorn", "fastapi"))
    theme = gradio.themes.Default(font=fonts, font_mono=["ui-monospace", "monospace"])
    app = gradio.mount_gradio_app(fastapi.FastAPI(), page, "/", theme=theme, ssr_mode=False, footer_links=[])
    uvicorn.run(app, host=_LOOPBACK, port=port, log_level="warning")


def build_page(job: DemoJob) -> Any:
    """The page of a model, by its task."""
    from holdfast.engine.predict.predictor import load_predictor

    make = {"classify": _labels_page, "causal": _answers_page, "two-tower": _search_page}[job.task]
    return make(load_predictor(job), job, examples_of(job))


def examples_of(job: DemoJob) -> list[str]:
    """A few texts to start from: held-out ones, if the run's prepared data still exists."""
    folder, prepared = Path(job.model), Path(job.options.prepared or "")
    manifest = read_manifest(prepared) if job.options.prepared else None
    split = next((name for name in ("test", "validation") if manifest and name in manifest.splits), None)
    if manifest is None or split is None or job.task == "causal":
        return [text[:_LONGEST_EXAMPLE] for text in job.prompts][:_EXAMPLES]
    from holdfast.engine.mistakes import TextView

    rows = len(open_array(prepared, f"{split}.rows"))
    tokenizer = folder / "query" if (folder / "query").is_dir() else folder
    texts, words = open_tokens(prepared, split), TextView(tokenizer, prepared)
    found = [words.text(split, at, texts[at])[:_LONGEST_EXAMPLE] for at in range(0, rows, max(1, rows // _EXAMPLES))]
    return [text for text in dict.fromkeys(found) if text][:_EXAMPLES]


def _labels_page(model: Any, job: DemoJob, examples: list[str]) -> Any:
    gradio: Any = import_module("gradio")

    def label(text: str) -> dict[str, float]:
        return dict(model.predict([{"text": text}])[0]["probabilities"]) if text.strip() else {}

    many = (
        " A text may have several labels, each with its own probability." if job.info and job.info.multi_label else ""
    )
    return gradio.Interface(
        label,
        gradio.Textbox(lines=5, label="Text"),
        gradio.Label(num_top_classes=_MAX_LABELS, label="Labels"),
        examples=examples or None,
        cache_examples=False,
        title=job.title,
        description="Probabilities are calibrated on texts the model was not trained on." + many,
        flagging_mode="never",
        api_name=False,
    )


def _answers_page(model: Any, job: DemoJob, examples: list[str]) -> Any:
    gradio: Any = import_module("gradio")

    def answer(message: str, history: list[dict[str, Any]]) -> str:
        before = [[turn["role"], _turn_text(turn["content"])] for turn in history]
        row: dict[str, Any] = {"turns": [*before, ["user", message]]} if job.is_chat else {"text": message}
        return str(model.predict([row])[0]["answer"])

    return gradio.ChatInterface(
        answer,
        chatbot=gradio.Chatbot(buttons=["copy", "copy_all"]),  # no button that shares with others
        examples=examples or None,
        cache_examples=False,
        title=job.title,
        description=None if job.is_chat else "The model continues the text you enter.",
        api_name=False,
    )


def _search_page(model: Any, job: DemoJob, examples: list[str]) -> Any:
    gradio: Any = import_module("gradio")

    def find(query: str) -> list[list[Any]]:
        found = model.predict([{"text": query}])[0]["found"] if query.strip() else []
        return [[rank, f"{one['score']:.3f}", one["text"]] for rank, one in enumerate(found, start=1)]

    with gradio.Blocks(title=job.title) as page:
        gradio.Markdown(f"# {job.title}")
        query = gradio.Textbox(label="Query", submit_btn=True)
        passages = gradio.Dataframe(
            headers=["rank", "score", "passage"], wrap=True, label="Passages", column_widths=[70, 80, 800]
        )
        if examples:
            gradio.Examples(examples, query)
        query.submit(find, query, passages, api_name=False)
    return page


def _turn_text(content: object) -> str:
    """The text of a turn; newer versions of gradio pass it in pieces."""
    if isinstance(content, list):
        return "".join(str(piece.get("text", "")) for piece in content if isinstance(piece, dict))
    return str(content)


if __name__ == "__main__":
    raise SystemExit(main())
