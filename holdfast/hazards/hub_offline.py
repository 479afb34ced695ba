"""The model hub cannot be reached, responds too slowly, or rejects requests.

What you see: "We couldn't connect to 'https://huggingface.co'", "Max retries exceeded", timeouts, certificate errors,
429 or 5xx responses; or a start that simply blocks, because some calls wait without a limit.
Why: no network on the job's node, a proxy or firewall, a required mirror that is not set, too many requests from one
address, or offline mode with a file that was never downloaded.
What we do: use the cache if it is complete, and download before the run, not during it.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.observations import LastPhase, RankVerdict, TreeVerdict, Verdict, Wait, WaitTarget
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Case, Hazard, Invited, has_verdict, observed, proves, seen, suggests

_OFFLINE = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"}


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    switches = [
        variable for variable in facts.variables if variable.name in _OFFLINE and variable.value not in ("", "0")
    ]
    if not switches:
        return None
    because = " and ".join(f"{variable.name}={variable.value}" for variable in switches)
    if not any(model.complete for model in facts.models):
        return Invited(f"{because}, and the model cache has no complete model")
    return Invited(f"{because}: only cached models can be used", "note")


_HOSTS = (
    r"huggingface\.co|hf\.co|hf-mirror\.com|cdn-lfs|hugging[_ ]?face|download\.pytorch\.org|pytorch\.org|tfhub\.dev|modelscope|models\.huggingface"
    r"|s3\.amazonaws\.com|storage\.googleapis|githubusercontent|github\.com|dl\.fbaipublicfiles|drive\.google|kaggle|ultralytics"
)
_FETCHING = seen(
    "log",
    rf"{_HOSTS}|hf_hub|huggingface_hub|from_pretrained|load_dataset|load_state_dict_from_url|model_zoo|torch[/\\]hub|cached_path|file_utils"
    r"|snapshot_download|download|urlretrieve|resolve/main|nltk|timm|transformers",
)
_NETWORK = (
    r"Max retries exceeded|NewConnectionError|ConnectTimeout\w*|ReadTimeout\w*|ProxyError|SSLError|SSLCertVerificationError|CERTIFICATE_VERIFY_FAILED"
    r"|Name or service not known|[Tt]emporary failure in name resolution|nodename nor servname|getaddrinfo failed|No address associated with hostname"
    r"|Network is unreachable|Connection (?:reset by peer|aborted|timed out|refused)|Remote end closed connection|RemoteDisconnected"
    r"|ChunkedEncodingError|IncompleteRead|Read timed out|urlopen error|ConnectError|RemoteProtocolError|timed out"
)
_NOT_THE_HUB = (
    seen(
        "error",
        r"(?i)\bredis\b|amqp|kombu|127\.0\.0\.1|localhost|\bgloo\b|TCPStore|c10d|wandb|visdom|postgres|mysql|mlflow",
    ),
    seen("frame", r"(?i)wandb|redis|kombu|visdom|mlflow|comet_ml|neptune"),
)

_REFUSED = seen(
    "log", r"40[134] (?:Client Error|Unauthorized|Forbidden)|HTTP Error 40[134]"
)  # it was reached, and said no

_IN_HUB = seen(
    "frame",
    r"huggingface_hub|hf_hub|hf_api|transformers/utils/hub|datasets/(?:load|download)|model_info|from_pretrained|resolve_revision|torch/hub",
)

HAZARD = Hazard(
    slug="hub-offline",
    title="the model hub could not be reached",
    kind="error",
    invited_by=invited_by,
    over=("network-stalled",),
    signs=(
        proves("log", r"[Ww]e couldn't connect to '?https?://|couldn't find (?:it|them) in the cached files"),
        proves(
            "log",
            r"LocalEntryNotFoundError|OfflineModeIsEnabled|Cannot reach https?://|[Oo]utgoing traffic has been disabled",
        ),
        proves(
            "log",
            r"error happened while trying to locate the files? on the Hub|An error happened while trying to locate",
        ),
        proves(
            "log",
            r"Cannot find the requested files in (?:the disk cache|the local cache|the cached path)|Cannot find an appropriate cached snapshot",
        ),
        proves("log", r"HTTPS?ConnectionPool\(host='[^'\n]*(?:huggingface|hf-mirror|hf\.co|modelscope)"),
        proves("log", r"Connection to \S*(?:huggingface\.co|hf-mirror\.com)\S* timed out"),
        proves(
            "log",
            r"Couldn't reach (?:https?://|the Hugging ?Face Hub|'|\S+ on the Hub)|ConnectionError: Couldn't reach",
        ),
        proves(has_verdict(Verdict.WAIT_NET), also=(_IN_HUB,)),
        proves(has_verdict(Verdict.WAIT_NET), also=(observed(LastPhase, lambda one: one.phase == "download"),)),
        proves("log", r"Consistency check failed: file should be of size"),
        proves(
            "error",
            r"(?:429|50[0-9])\b[^\n]*(?:Too Many Requests|Server Error|Gateway|Service Unavailable|Client Error)",
            also=(_FETCHING,),
        ),
        proves("log", r"(?:429|50[0-9]) (?:Client|Server) Error[^\n]*(?:huggingface|hf\.co|hf-mirror)"),
        proves("error", r"(?i)(?:hit|exceeded|reached)[^\n]{0,30}rate limit|rate limit exceeded", also=(_FETCHING,)),
        proves("error", rf"(?:{_NETWORK})", also=(_FETCHING,), unless=_NOT_THE_HUB),
        suggests(
            "error",
            r"requests\.exceptions\.|urllib3\.exceptions\.|urllib\.error\.|httpx\.|httpcore\.|aiohttp\.client",
            unless=(*_NOT_THE_HUB, _REFUSED),
        ),
        suggests(
            "error",
            r"MaxRetryError|URLError|HTTPError|ConnectTimeout|ReadTimeout|ProxyError|SSLError",
            unless=(*_NOT_THE_HUB, _REFUSED),
        ),
        suggests("log", r"thrown while requesting (?:HEAD|GET) https?://|Retrying in \d+s \[Retry \d/\d\]"),
        suggests("log", rf"(?:{_NETWORK})", also=(_FETCHING,), unless=_NOT_THE_HUB),
        # Before 4.20 transformers printed the same for an unreachable hub and for a wrong name.
        suggests(
            "log",
            r"Can't load (?:config|tokenizer|weights|model|the \w+|feature extractor|image processor|processor) for '",
        ),
        suggests("log", r"was not found in (?:the )?(?:tokenizers )?model name list"),
        suggests("log", r"Connection error, and we cannot find the requested files"),
        suggests(
            "frame",
            r"get_hf_file_metadata|_get_metadata_or_catch_error|_request_wrapper|http_get \(|hf_hub_download|_hf_hub_download\w*|snapshot_download|http_backoff",
            unless=(seen("error", r"."),),
        ),
    ),
    remedies=(
        Remedy(
            "use only cached files",
            change={"offline": True, "HF_HUB_OFFLINE": "1"},
            cost="fails immediately, instead of waiting, if a file was never downloaded",
        ),
        Remedy(
            "download the model beforehand, on a machine with a network connection", command="hf download OWNER/NAME"
        ),
        Remedy("use a mirror that can be reached", command="export HF_ENDPOINT=https://hf-mirror.com"),
        Remedy(
            "set the proxy, or the company's certificate",
            command="export HTTPS_PROXY=http://proxy:3128 REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt",
        ),
        Remedy("for 429: send requests with a token", command="export HF_TOKEN=hf_..."),
    ),
    sources=(
        "roboflow/rf-detr#100",
        "huggingface/transformers#12575",
        "tomaarsen/SpanMarkerNER#52",
        "huggingface/transformers#26011",
        "huggingface/huggingface_hub#3312",
        "lllyasviel/ControlNet#408",
    ),
    matches=(
        "OSError: We couldn't connect to 'https://huggingface.co' to load this file, couldn't find it in the cached files",
        "requests.exceptions.ConnectTimeout: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /bert-base-uncased/resolve/main/config.json\"), '(Request ID: 8ba9b399)')",
        "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub and we cannot find the requested files in the local cache.",
        "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/models/x: offline mode is enabled.",
        "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/x/resolve/main/config.json",
        "ConnectionError: Couldn't reach https://raw.githubusercontent.com/huggingface/datasets/1.1.3/datasets/glue/glue.py",
        'Downloading: "https://download.pytorch.org/models/resnet34-b627a593.pth"\nurllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>',
        "httpx.ConnectTimeout: [Errno 110] Connection timed out",
        Case(
            'Thread 41 (idle): "MainThread"\n    recv (httpcore/_backends/sync.py:128)\n    model_info (huggingface_hub/hf_api.py:2911)\n',
            "hang",
            (
                TreeVerdict(
                    verdict=Verdict.WAIT_NET,
                    main=RankVerdict(
                        pid=41,
                        verdict=Verdict.WAIT_NET,
                        wait=Wait(kind="net", target=WaitTarget.ADDRESS, name="127.0.0.1:8443", silent_seconds=70.0),
                    ),
                ),
            ),
        ),
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the specified revision on the local disk",
        "urllib3.exceptions.ConnectTimeoutError: Connection to huggingface.co timed out. (connect timeout=10)",
        Case("", "hang", (TreeVerdict(verdict=Verdict.WAIT_NET), LastPhase(phase="download"))),
        "OSError: Consistency check failed: file should be of size 548118077 but has size 31457280",
        "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests. You have hit the rate limit for https://huggingface.co/api/models",
        "'(ReadTimeoutError(\"Read timed out.\"))' thrown while requesting HEAD https://huggingface.co/gpt2/resolve/main/config.json\nRetrying in 1s [Retry 1/5].",
        "OSError: Can't load tokenizer for 'bert-base-uncased'. If you were trying to load it from the Hub, make sure you don't have a local directory with the same name.",
        "Model name 'my-bert' was not found in tokenizers model name list (bert-base-uncased).",
        "ValueError: Connection error, and we cannot find the requested files in the cached path.",
        '  File "/venv/lib/python3.11/site-packages/huggingface_hub/file_download.py", line 1484, in hf_hub_download\n',
    ),
    near_misses=(
        "OSError: meta-llama/Llama-2-13b-hf is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
        "redis.exceptions.ConnectionError: Error 111 connecting to localhost:6379. Connection refused.",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:51116",
        "wandb.errors.CommError: Run initialization has timed out after 90.0 sec.",
        "ConnectionRefusedError: [Errno 111] Connection refused",
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
