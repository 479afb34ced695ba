"""The network port that the run wants to listen on is taken.

What you see: "The server socket has failed to listen on any local network address ... EADDRINUSE", "Address already in
use", "Only one usage of each socket address is normally permitted".
Why: a second run on the same machine uses the same rendezvous port (29500 by default), or a process of an earlier run
still holds it.
What we do: say so. With `--nodes`, Holdfast chooses a free port itself; other launchers need to be given one.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, suggests

HAZARD = Hazard(
    slug="port-in-use",
    title="the network port of the run is already in use",
    kind="error",
    signs=(
        proves(
            "error",
            r"(?:server socket has failed to (?:listen|bind)|failed to bind|OSError|RuntimeError|error while attempting to bind)[^\n]*(?:EADDRINUSE|[Aa]ddress already in use)",
        ),
        proves("error", r"WinError 10048|Only one usage of each socket address"),
        proves(
            "error",
            r"ConnectionError: Tried to launch distributed communication on port|[Pp]ort \d{2,5} is (?:already )?(?:in use|not available|occupied)",
        ),
        suggests("error", r"EADDRINUSE|[Aa]ddress already in use"),
    ),
    remedies=(
        Remedy(
            "use a free port",
            command="torchrun --rdzv-backend c10d --rdzv-endpoint localhost:0 train.py   # or --master_port 29511",
            cost="none",
        ),
        Remedy("find what holds the port, and end it if it is left over", command="ss -ltnp 'sport = :29500'"),
    ),
    sources=(
        "meta-pytorch/torchtune#392",
        "xdit-project/mochi-xdit#22",
        "pytorch/pytorch#126510",
        "NVIDIA/Megatron-LM#343",
    ),
    matches=(
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "RuntimeError: Address already in use",
        "OSError: [WinError 10048] Only one usage of each socket address (protocol/network address/port) is normally permitted",
        "ConnectionError: Tried to launch distributed communication on port `29500`, but another process is utilizing it. Please specify a different port",
        "zmq.error.ZMQError: Address already in use (addr='tcp://*:5570')",
    ),
    near_misses=(
        "[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:29400 (errno: 98 - Address already in use).\nEpoch 1: loss 0.42",
        "RuntimeError: connect() timed out. Original timeout was 1800000 ms.",
    ),
)
