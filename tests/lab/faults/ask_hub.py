"""Asks a model hub that accepts the connection and never answers."""

import steps
from huggingface_hub import HfApi

steps.enter("load")
HfApi().model_info("owner/name")
