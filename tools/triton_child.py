"""Compiles one Triton function to a cubin, inside the sandbox. It travels alone: it imports nothing of kernelcrew.

The folder given as the argument holds `job.json` and `kernel.py`; `kernel.cubin` and `answer.json` are left there. The
assembler's report goes to standard output, where Triton prints it.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any


def compiled(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Compile as `job` says; what the launch needs to know."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = loaded(folder / "kernel.py", job["kernel"])
    names = list(function.arg_names)
    given = {**job["signature"], **dict.fromkeys(job["constants"], "constexpr")}
    if set(names) != set(given):
        missing, unknown = sorted(set(names) - set(given)), sorted(set(given) - set(names))
        return {"error": f"the plan does not fit the parameters: missing {missing}, unknown {unknown}", "line": 0}
    source = ASTSource(
        fn=function, signature={name: given[name] for name in names},
        constexprs={(names.index(name),): value for name, value in job["constants"].items()},
        attrs={(names.index(name),): [["tt.divisibility", by]] for name, by in job["divisible"].items()},
    )  # fmt: skip
    options = {"num_warps": job["num_warps"], "num_stages": job["num_stages"], "num_ctas": job["num_ctas"]}
    if job["max_registers"] is not None:
        options["maxnreg"] = job["max_registers"]
    kernel = triton.compile(source, target=GPUTarget("cuda", job["capability"], 32), options=options)
    (folder / "kernel.cubin").write_bytes(kernel.asm["cubin"])
    (folder / "kernel.ptx").write_text(kernel.asm["ptx"])
    held = kernel.metadata
    return {
        "name": held.name,
        "shared_bytes": int(held.shared),
        "num_warps": int(held.num_warps),
        "global_scratch_bytes": int(getattr(held, "global_scratch_size", 0) or 0),
        "profile_scratch_bytes": int(getattr(held, "profile_scratch_size", 0) or 0),
        "triton": triton.__version__,
    }


def loaded(path: Path, name: str) -> Any:
    """The function `name` of the candidate's module, which is run for that."""
    spec = importlib.util.spec_from_file_location("candidate", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def explained(error: BaseException, text: str) -> dict[str, Any]:
    """Words and source line of the innermost error that has a place in the source."""
    best, line = error, 0
    seen: BaseException | None = error
    while seen is not None:
        node, source = getattr(seen, "node", None), getattr(seen, "src", None)
        if node is not None and isinstance(source, str) and hasattr(node, "lineno"):
            best, line = seen, first_line(source, text) + node.lineno - 1
        seen = seen.__cause__
    words = getattr(best, "error_message", None) or str(best.__cause__ or "") or str(best)
    words = words.partition("Repro command")[0].strip()
    return {"error": f"{type(best).__name__}: {words}"[:2000], "line": max(line, 0)}


def first_line(function: str, text: str) -> int:
    """Line of `text` on which the function begins whose text Triton has."""
    name = function.partition("(")[0].removeprefix("def ").strip()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node.lineno
    return 0


def main(folder: Path) -> None:
    """Read the job, compile, leave the answer."""
    job = json.loads((folder / "job.json").read_text())
    sys.path.insert(0, job["site"])
    try:
        answer = compiled(job, folder)
    except Exception as error:  # noqa: BLE001 - the outermost frame: whatever ends the compiler is an answer
        answer = explained(error, (folder / "kernel.py").read_text())
    (folder / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
