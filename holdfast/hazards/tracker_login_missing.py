"""The experiment tracker has no key, and there is no terminal to ask for one.

What you see: "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])", or a
wait at "wandb: Enter your choice".
Why: transformers and other trainers report to every tracker that is installed. In a job, a container or under a
supervisor nobody can type the key.
What we do: switch the tracker off or to offline; training itself needs none.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import HUNG, Case, Hazard, proves, suggests

HAZARD = Hazard(
    slug="tracker-login-missing",
    title="the experiment tracker is not logged in",
    kind="error",
    signs=(
        proves(
            "log",
            r"wandb[^\n]{0,40}(?:api_key not configured|No API key configured|API key must be|invalid API key)|wandb\.errors\.\w+: [^\n]*(?i:api.key|permission denied|not logged in)",
        ),
        proves(
            "error",
            r"(?i)(?:comet|neptune|swanlab|clearml|mlflow|aim|dvclive)\w*[^\n]{0,80}(?:api[ _]?(?:key|token)|credentials)[^\n]{0,60}(?:not|missing|invalid|required|set)",
        ),
        suggests(
            "error",
            r"wandb\.errors\.CommError|W&B API: [^\n]*(?:not logged in|permission)|mlflow\.exceptions\.\w+: [^\n]*(?:401|403|credential)",
        ),
        suggests("log", r"wandb: (?:Enter your choice|Paste an API key|You can find your API key)", also=(HUNG,)),
    ),
    remedies=(
        Remedy(
            "train without the tracker",
            change={"WANDB_MODE": "offline", "COMET_MODE": "DISABLED"},
            cost="nothing is uploaded",
        ),
        Remedy("report to none", command="TrainingArguments(report_to='none')"),
        Remedy("log in once, or pass the key", command="wandb login   # or export WANDB_API_KEY=..."),
    ),
    sources=(
        "unslothai/unsloth#1914",
        "ultralytics/yolov5#2848",
        "OptimalScale/LMFlow#65",
        "hiyouga/LlamaFactory#1372",
    ),
    matches=(
        "wandb.errors.CommError: It appears that you do not have permission to access the requested resource",
        "wandb: ERROR api_key not configured (no-tty). call wandb.login(key=[your_api_key])\nwandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
        "ValueError: Comet.ml requires an API key. Please provide as the first argument to Experiment(api_key) or as an environment variable named COMET_API_KEY; it is not set",
        Case(
            "wandb: (1) Create a W&B account\nwandb: (2) Use an existing W&B account\nwandb: Enter your choice: ",
            "hang",
        ),
    ),
    near_misses=(
        "wandb: WARNING The get_url method is deprecated and will be removed in a future release.",
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. Access to model meta-llama/Llama-3.2-1B is restricted.",
    ),
)
