"""The processes of a distributed run do not find each other.

What you see: nothing after "Initializing process group"; "The client socket has failed to connect to [node0]:29500";
"environment variable MASTER_ADDR expected, but not set"; a stack that ends in `_create_c10d_store` or `TCPStore`.
Why: the first process waits until all announced ranks have connected. Some were never started, or they have another
address, port or number of ranks, often from variables that an earlier job left in the shell, or a firewall is between
them.
What we do: name the variable or the address. `holdfast run --nodes` sets them itself.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import HUNG, Case, Hazard, proves, suggests

HAZARD = Hazard(
    slug="rendezvous-failed",
    title="the processes of a distributed run do not find each other",
    kind="hang",
    signs=(
        proves(
            "error",
            r"environment variable (?:MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE|LOCAL_RANK) expected, but not set|Default process group (?:is|has) not (?:been )?initialized",
        ),
        proves(
            "error",
            r"client socket has failed to connect to|failed to connect to (?:any|the) (?:network|master|rendezvous|TCPStore)|The (?:IPv4|IPv6) network addresses of \([^)]*\) cannot be retrieved",
        ),
        proves(
            "error",
            r"RendezvousConnectionError|RendezvousClosedError|connect\(\) timed out\. Original timeout was|Rank \d+ is greater than or equal to world size|invalid (?:rank|world_size)\b",
        ),
        suggests(
            "frame",
            r"^(?:_create_c10d_store|_tcp_rendezvous_handler|_env_rendezvous_handler|next_rendezvous|c10d::TCPStore::TCPStore|init_process_group) \(",
            also=(HUNG,),
        ),
    ),
    remedies=(
        Remedy("let one command start all ranks", command="torchrun --standalone --nproc-per-node gpu train.py"),
        Remedy(
            "remove what an earlier job left in the shell",
            command="unset MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK",
        ),
        Remedy(
            "on several machines: use the same address, port and number on each, and check the way between them",
            command="nc -vz NODE0 29500",
        ),
    ),
    sources=("pytorch/pytorch#52848", "pytorch/pytorch#49846", "pytorch/pytorch#81704", "pytorch/pytorch#15638"),
    matches=(
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable MASTER_ADDR expected, but not set",
        "[E socket.cpp:957] [c10d] The client socket has failed to connect to [node0]:29500 (errno: 111 - Connection refused).",
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.",
        Case(
            'Thread 0x00007f3a (most recent call first):\n  File "/venv/lib/python3.12/site-packages/torch/distributed/rendezvous.py", line 189 in _create_c10d_store\n'
            '  File "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 1750 in init_process_group\n  File "train.py", line 9 in <module>',
            "hang",
        ),
    ),
    near_misses=(
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded",
    ),
)
