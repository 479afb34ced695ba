"""The model or dataset needs a login, needs an accepted license, or does not exist under that name.

What you see: "401 Client Error", "GatedRepoError", "Repository Not Found", or "X is not a local folder and is not a
valid model identifier".
Why: the hub answers 401 both for gated or private repositories without a token and for names that do not exist, so the
messages look alike. A token may also lack permission for gated repositories.
What we do: check access before the run, with the token that the run will use.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests

_HUB = seen("log", r"(?i)huggingface|hugging face|hf_hub|hf-mirror|\bhf\b|transformers|modelscope")

HAZARD = Hazard(
    slug="hub-gated",
    title="the hub denied access to the model or dataset",
    kind="error",
    over=("hub-offline",),
    signs=(
        proves(
            "log",
            r"GatedRepoError|Cannot access gated repo|trying to access a gated repo|is a gated dataset on the Hub",
        ),
        proves("log", r"RepositoryNotFoundError|Repository Not Found for url|DatasetNotFoundError"),
        proves("log", r"is not a local folder and is not a valid model identifier"),
        proves("log", r"Access to (?:model|dataset) \S+ is restricted|is awaiting a review from the repo authors"),
        proves("log", r"doesn't exist on the Hub or cannot be accessed|make sure you are authenticated"),
        proves("log", r"LocalTokenNotFoundError|Token is required \(`?token=True|Invalid user token|no token found"),
        proves("log", r"If this is a private repository, make sure to pass a token|having permission to this repo"),
        proves("log", r"40[13] Client Error\. \(Request ID"),
        proves("error", r"40[13] Client Error[^\n]*", also=(_HUB,)),
        proves("log", r"40[13] (?:Client Error|Unauthorized|Forbidden)[^\n]*(?:huggingface|hf\.co|hf-mirror)"),
        proves("error", r"Invalid username or password|Invalid credentials in Authorization header", also=(_HUB,)),
        proves("log", r"enable access to public gated repositories"),
        proves("error", r"[Gg]ated (?:model|repo|dataset)"),
        suggests("error", r"(?:401|403)\b[^\n]*(?:Unauthorized|Forbidden)", also=(_HUB,)),
        suggests("log", r"[Yy]ou (?:must|need to|have to) be authenticated|use_auth_token=True"),
    ),
    remedies=(
        Remedy(
            "accept the terms on the model's page, then log in on this machine",
            command="hf auth login",
            cost="none",
        ),
        Remedy("pass the token to a run without a terminal", command="export HF_TOKEN=hf_..."),
        Remedy(
            "check the name: a missing repository gives the same error",
            command="hf models info OWNER/NAME",
        ),
        Remedy("use a local model folder", command="AutoModel.from_pretrained('/path/to/folder')"),
    ),
    sources=(
        "ml-explore/mlx-examples#759",
        "philschmid/sagemaker-huggingface-llama-2-samples#6",
        "unslothai/unsloth#1892",
        "kyegomez/swarms#228",
        "tloen/alpaca-lora#307",
    ),
    matches=(
        "huggingface_hub.utils._errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-6638)",
        "OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/meta-llama/Llama-2-7b-hf.",
        "OSError: meta-llama/Llama-2-13b-hf is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
        "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. Repository Not Found for url: https://huggingface.co/api/models/x/y.",
        "datasets.exceptions.DatasetNotFoundError: Dataset 'x/y' is a gated dataset on the Hub. You must be authenticated to access it.",
        "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/api/models/google/gemma-2b",
        "Access to model meta-llama/Llama-3.2-1B is restricted. You must have access to it and be authenticated to access it.",
        "DatasetNotFoundError: Dataset 'team/private' doesn't exist on the Hub or cannot be accessed.",
        "huggingface_hub.errors.LocalTokenNotFoundError: Token is required (`token=True`), but no token found.",
        "If this is a private repository, make sure to pass a token having permission to this repo with `token`",
        "huggingface_hub.errors.HfHubHTTPError: 401 Client Error. Invalid username or password.",
        "403 Forbidden: Please enable access to public gated repositories in your fine-grained token settings",
    ),
    near_misses=(
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.",
        "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/x/resolve/main/config.json",
        "wandb.errors.CommError: permission denied",
        "OSError: x/y does not appear to have a file named config.json.",
    ),
)
