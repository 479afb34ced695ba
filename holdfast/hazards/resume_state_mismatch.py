"""The saved optimizer, scheduler or trainer state does not match the resumed run.

What you see: "loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
"checkpoint contains only the model", or a size error inside `optimizer.step()` on the first resumed step.
Why: torch stores optimizer state by position, so a different parameter order, set of frozen layers, wrapper or number
of processes shifts it. Or the checkpoint never contained that state, or was interrupted before `trainer_state.json` was
written.
What we do: record what is trained in the checkpoint's manifest, refuse a resume that would differ, and fall back to the
previous checkpoint.
"""

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, judged, proves, seen, suggests

_STATE_KEYS = (
    r"optimizer\w*|optim|optimizer_states?|lr_schedulers?|scheduler\w*|param_groups|exp_avg(?:_sq)?|radam_buffer|momentum_buffer|step"
    r"|epoch|global_step|iteration|best_\w+|betas|foreach|maximize|capturable|differentiable|fused|loops|callbacks|amp|scaler|rng_state|random_rng_state"
)
_RESUMING = seen(
    "log",
    r"(?i)resum|load_state\b|load_checkpoint|restor|optimizer\.load_state_dict|ckpt_path|load_optimizer|checkpoint\[|ckpt\[|state\[|start_epoch|last_epoch",
)
_SIZE_CLASH = (
    r"sizes? (?:of tensor|do(?:es)? not match)|size mismatch|must match (?:the )?(?:existing )?size|doesn't match the broadcast shape"
    r"|inconsistent tensor sizes?|shapes? (?:cannot be|not) broadcast|output with shape"
)


def _clash_in_optimizer(evidence: Evidence) -> Passage | None:
    """A size error whose traceback ends in an optimizer's step: parameters and state are from different runs."""
    in_optimizer = list(
        evidence.log.search(r"torch[/\\]optim[/\\]\w+\.py|(?:exp_avg|momentum_buffer|\bbuf)\.(?:mul_|lerp_|add_)")
    )
    if not in_optimizer:
        return None
    last = in_optimizer[-1][1].line
    clashes = (passage for _, passage in evidence.log.search(_SIZE_CLASH))
    return next((passage for passage in clashes if 0 <= passage.line - last <= 12), None)


HAZARD = Hazard(
    slug="resume-state-mismatch",
    title="the saved training state does not match the resumed run",
    kind="error",
    signs=(
        judged("proves", _clash_in_optimizer),
        proves("log", r"loaded state dict (?:contains a parameter group|has a different number of parameter groups)"),
        proves(
            "log",
            r"Trying to restore (?:optimizer|training|scheduler|\w+) state but checkpoint contains only the model",
        ),
        proves(
            "log",
            r"checkpoint being loaded used a DP world size|Automatic adjustment of ZeRO's optimizer state partitioning",
        ),
        proves(
            "log",
            r"If `?capturable=False`?, `?state_steps`? should not be CUDA tensors|`?state_steps`? argument must contain a list of singleton",
        ),
        proves("log", r"(?:Criterion|Optimizer) does not match; please reset the optimizer"),
        proves("log", r"RNG state (?:must be a torch\.ByteTensor|is wrong size)"),
        proves(
            "error",
            r"(?i)(?:optimizer|scheduler|trainer|training|rng)[ _]state\w*[^\n]{0,60}(?:does not match|doesn't match|mismatch|not found|missing|incompatible|cannot be (?:loaded|restored))",
        ),
        proves(
            "log",
            r"No such file or directory: [^\n]*(?:trainer_state\.json|optimizer\.(?:pt|bin)|scheduler\.(?:pt|bin)|rng_state\S*\.pth|random_states_\d+\.pkl|training_state\S*|\S*optim_states\.pt|\S*mp_rank_\d+_model_states\.pt)",
        ),
        proves("log", r"(?:[Cc]an't find a|No) valid checkpoint (?:at|found in)"),
        suggests("error", rf"^KeyError: ['\"(]*(?:{_STATE_KEYS})['\")]*$", also=(_RESUMING,)),
        suggests(
            "error",
            r"KeyError",
            also=(
                seen(
                    "log",
                    r"torch[/\\]optim[/\\]\w+\.py|optimizer\.load_state_dict|restore_optimizers?|lr_scheduler\.load_state_dict",
                ),
            ),
        ),
        suggests(
            "error",
            r"^(?:ValueError|RuntimeError|AssertionError|KeyError|IndexError|TypeError|AttributeError)",
            also=(
                seen(
                    "log",
                    r"_load_optimizer_and_scheduler|restore_optimizers|restore_training_state|load_optimizer_states|_load_zero_checkpoint|_load_rng_state|load_sharded_optimizer",
                ),
            ),
            unless=(seen("log", r"[Ww]eights[ _]only|Error\(s\) in loading state_dict|vulnerability"),),
        ),
        suggests("error", r"(?i)resum[^\n]*(?:different|mismatch|not match|number of (?:gpus|processes|devices))"),
        suggests(
            "frame",
            r"load_state_dict \(.*torch.optim|restore_optimizers|_load_optimizer_and_scheduler",
            unless=(seen("error", r"."),),
        ),
    ),
    remedies=(
        Remedy(
            "resume with the saved run's model, frozen layers, parameter order and number of processes",
            command="python train.py --resume_from_checkpoint out/checkpoint-500   # with the settings it was saved with",
            cost="none",
        ),
        Remedy(
            "resume from the previous checkpoint, if the newest is incomplete",
            command="trainer.train(resume_from_checkpoint='OUTPUT/checkpoint-PREVIOUS')",
            cost="the steps between the two",
        ),
        Remedy(
            "load only the weights and start with a fresh optimizer",
            command="AutoModel.from_pretrained('OUTPUT/checkpoint-N')",
            cost="momentum and learning-rate schedule start over",
            keeps=False,
        ),
    ),
    sources=(
        "roytseng-tw/Detectron.pytorch#37",
        "facebookresearch/GloRe#8",
        "harubaru/waifu-diffusion#19",
        "Lightning-AI/pytorch-lightning#5325",
        "nyu-mll/jiant#133",
        "HRNet/HRNet-Semantic-Segmentation#252",
        "Lightning-AI/pytorch-lightning#19585",
    ),
    matches=(
        "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
        "KeyError: 'Trying to restore optimizer state but checkpoint contains only the model. This is probably due to `ModelCheckpoint.save_weights_only` being set to `True`.'",
        '    optimizer.step()\n  File "/venv/lib/python3.6/site-packages/torch/optim/adam.py", line 92, in step\n    exp_avg.mul_(beta1).add_(1 - beta1, grad)\nRuntimeError: The expanded size of the tensor (6144) must match the existing size (4096) at non-singleton dimension 1',
        "    optimizer.load_state_dict(utils_state_dict['optimizer'])\nKeyError: 'optimizer'",
        "deepspeed.runtime.zero.utils.ZeRORuntimeException: The checkpoint being loaded used a DP world size of 32 but the current world size is 128.",
        "AssertionError: If capturable=False, state_steps should not be CUDA tensors.",
        "ValueError: Can't find a valid checkpoint at out/checkpoint-20",
        "FileNotFoundError: [Errno 2] No such file or directory: 'out/checkpoint-20/trainer_state.json'",
        "RuntimeError: Criterion does not match; please reset the optimizer (--reset-optimizer).",
        "TypeError: RNG state must be a torch.ByteTensor",
        "RuntimeError: the optimizer state does not match the model's parameters",
        "  File \"/venv/lib/python3.11/site-packages/transformers/trainer.py\", line 3400, in _load_optimizer_and_scheduler\n    self.optimizer.load_state_dict(state)\nKeyError: 'exp_avg'",
        "RuntimeError: resuming with a different number of GPUs is not possible",
        '  File "/venv/lib/python3.11/site-packages/pytorch_lightning/trainer/connectors/checkpoint_connector.py", line 310, in restore_optimizers\n',
    ),
    near_misses=(
        "RuntimeError: Error(s) in loading state_dict for BoringModel:\n\tsize mismatch for layer.weight",
        "KeyError: 'epoch'",
        "RuntimeError: The size of tensor a (32) must match the size of tensor b (64) at non-singleton dimension 2",
        "UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`.",
        "ValueError: optimizer got an empty parameter list",
    ),
)
