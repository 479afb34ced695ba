"""The phases of a run as people say them."""

_PHASES = {
    "store": "brings its files from the store",
    "model": "fetches the model",
    "survey": "reads the data",
    "look": "looks at the machine",
    "plan": "makes a plan",
    "prepare": "turns the texts into tokens",
    "prove": "tries the run in small",
    "start": "starts the training process",
    "import": "loads the libraries",
    "load": "loads the model",
    "resume": "goes on from a checkpoint",
    "compile": "compiles the model",
    "first step": "does its first step",
    "step": "trains",
    "evaluate": "evaluates",
    "save": "saves a checkpoint",
    "export": "writes the model",
    "mine": "searches near-misses",
    "end": "ends",
}


def phase_words(phase: str) -> str:
    """What the run does in a phase."""
    return _PHASES.get(phase, f"is in phase {phase}" if phase else "begins")
