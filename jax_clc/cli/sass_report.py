"""Static evidence: what the assembler made of each shipped kernel, read from its machine code.

The emulated device executes PTX and cannot see what happens after it. This report can: registers, spills, how many
tensor core and copy instructions a K block takes, and where the request for the next tile sits. It needs `nvdisasm`,
from the PATH or the PyPI package nvidia-cuda-nvdisasm, and no GPU.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CUBINS = Path(__file__).parent.parent / "cubins"
TENSOR_CORE = re.compile(r"(UTC\w*MMA|HGMMA)\b")
TMA_LOAD, TMA_STORE = re.compile(r"UTMALDG\b"), re.compile(r"UTMASTG\b")
CLC_REQUEST = re.compile(r"UGETNEXTWORKID\b")
LANE_LOOP = re.compile(r"BRA\.U\.ANY\b")  # around an instruction whose operands may differ between lanes
LOCAL_MEMORY = re.compile(r"(STL|LDL)\b")
MMA_K_BYTES = 32  # bytes of k that one tensor-core instruction takes, of every 16-bit, 8-bit and tf32 type


@dataclass
class Block:
    """Instructions that run one after the other: (address, text without predicate, whole text)."""

    instructions: list[tuple[int, str]] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)

    def count(self, pattern: re.Pattern[str]) -> int:
        return sum(bool(pattern.match(text)) for _, text in self.instructions)


@dataclass(frozen=True)
class SassFacts:
    """What the machine code of one kernel says. A "K block" is one turn of the innermost loop around the
    instruction."""

    instructions: int
    code_bytes: int
    local_memory_instructions: int
    mma_per_k_block: int
    tma_loads_per_k_block: int
    tma_stores: int
    clc_request_addresses: tuple[int, ...]
    clc_request_loop: bool
    lane_loops: int


def find_tool(name: str, package: str) -> str:
    """A CUDA binary tool: of the PATH, else of its PyPI package. Raises FileNotFoundError with the command to
    install."""
    if found := shutil.which(name):
        return found
    try:
        files = importlib.metadata.distribution(package).files or ()
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(f"{name} is not on the PATH; pip install {package}") from None
    return next(str(file.locate()) for file in files if file.name == name)


def disassemble(cubin: Path) -> str:
    tool = find_tool("nvdisasm", "nvidia-cuda-nvdisasm")
    return subprocess.run([tool, "-c", str(cubin)], check=True, capture_output=True, text=True).stdout


INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;")
LABEL = re.compile(r"^\s*(\.L_x?_?\w+|\$?[\w$]+):\s*$")
TARGET = re.compile(r"`\(([^)]+)\)")


def control_flow(sass: str) -> list[Block]:
    """The blocks of the first function, entry first, with the edges that converged warps take.

    BRA.DIV leads to copies of the code for warps whose lanes have parted; they are the same instructions once more and
    are left out, as are functions that are called.
    """
    blocks: list[Block] = [Block()]
    labels: dict[str, int] = {}
    jumps: list[tuple[int, str]] = []
    open_block = True
    for line in sass.partition("\n.text.")[2].splitlines()[1:]:
        if line.startswith("\t.section"):
            break
        if label := LABEL.match(line):
            blocks.append(Block())
            if open_block:
                blocks[-2].successors.append(len(blocks) - 1)
            labels[label[1]], open_block = len(blocks) - 1, True
        elif instruction := INSTRUCTION.search(line):
            address, text = int(instruction[1], 16), instruction[2]
            predicated = "@" in line.partition("*/")[2].partition(text)[0]
            blocks[-1].instructions.append((address, text))
            opcode = text.split()[0]
            target = TARGET.search(text)
            conditional = predicated or re.search(r"BRA(\.\w+)* !?U?P\d", text) is not None
            if opcode.startswith(("BRA", "JMP")) and target and ".DIV" not in opcode:
                jumps.append((len(blocks) - 1, target[1]))
            ends = opcode.startswith(("BRA", "JMP", "EXIT", "RET")) and ".DIV" not in opcode
            if ends:
                blocks.append(Block())
                if conditional:
                    blocks[-2].successors.append(len(blocks) - 1)
    for source, name in jumps:
        if name in labels:
            blocks[source].successors.append(labels[name])
    return blocks


def reachable(blocks: Sequence[Block]) -> set[int]:
    seen, work = {0}, [0]
    while work:
        for successor in blocks[work.pop()].successors:
            if successor not in seen:
                seen.add(successor)
                work.append(successor)
    return seen


def loops(blocks: Sequence[Block]) -> list[set[int]]:
    """Natural loops: for each edge back to a block that dominates its source, the blocks that can reach it."""
    nodes = reachable(blocks)
    predecessors: dict[int, list[int]] = {node: [] for node in nodes}
    for node in nodes:
        for successor in blocks[node].successors:
            predecessors[successor].append(node)
    dominators = {node: set(nodes) for node in nodes}
    dominators[0] = {0}
    changed = True
    while changed:
        changed = False
        for node in sorted(nodes - {0}):
            new = {node} | set.intersection(*(dominators[p] for p in predecessors[node]))
            if new != dominators[node]:
                dominators[node], changed = new, True
    found = []
    for node in nodes:
        for head in blocks[node].successors:
            if head in dominators[node]:
                body, work = {head, node}, [node] if node != head else []
                while work:
                    for predecessor in predecessors[work.pop()]:
                        if predecessor not in body:
                            body.add(predecessor)
                            work.append(predecessor)
                found.append(body)
    return found


def innermost_count(blocks: Sequence[Block], all_loops: Sequence[set[int]], pattern: re.Pattern[str]) -> int:
    """How often the instruction stands in the smallest loop around it; where it stands in several places that are not
    one loop, their sum over loops that do not contain each other."""
    holders = [node for node in reachable(blocks) if blocks[node].count(pattern)]
    chosen: list[set[int]] = []
    for holder in holders:
        around = min((loop for loop in all_loops if holder in loop), key=len, default=set())
        if around and around not in chosen:
            chosen.append(around)
    return max((sum(blocks[n].count(pattern) for n in loop) for loop in chosen), default=0)


def read_facts(cubin: Path) -> SassFacts:
    """Raises FileNotFoundError without nvdisasm, CalledProcessError for a file that is no cubin."""
    blocks = control_flow(disassemble(cubin))
    nodes = reachable(blocks)
    all_loops = loops(blocks)
    instructions = [pair for block in blocks for pair in block.instructions]
    requests = [(n, a) for n in sorted(nodes) for a, text in blocks[n].instructions if CLC_REQUEST.match(text)]
    return SassFacts(
        instructions=len(instructions),
        code_bytes=16 * len(instructions),
        local_memory_instructions=sum(bool(LOCAL_MEMORY.match(text)) for _, text in instructions),
        mma_per_k_block=innermost_count(blocks, all_loops, TENSOR_CORE),
        tma_loads_per_k_block=innermost_count(blocks, all_loops, TMA_LOAD),
        tma_stores=sum(blocks[n].count(TMA_STORE) for n in nodes),
        clc_request_addresses=tuple(address for _, address in requests),
        clc_request_loop=all(any(node in loop for loop in all_loops) for node, _ in requests),
        lane_loops=sum(bool(LANE_LOOP.search(text)) for _, text in instructions),
    )


def expected_mma_per_k_block(entry: dict) -> int:
    """Tensor-core instructions for one stage of k, of one MMA tile; Hopper's one per 64 rows of each warpgroup's
    part."""
    width = {"bfloat16": 2, "float16": 2, "float32": 4}.get(entry["dtypes"]["a"], 1)
    steps = entry["cta_tile"][2] * width // MMA_K_BYTES
    return steps


def expected_loads_per_k_block(entry: dict) -> int:
    """TMA instructions that one CTA issues to load its share of a stage of A and of B."""
    m, n, k = entry["cta_tile"]
    pair = 2 if entry["two_sm_mma"] else 1
    sharers = {"a": entry["cluster"][1], "b": entry["cluster"][0] // pair}
    elements = {"a": m * k, "b": n // pair * k}
    loads = 0
    for parameter in entry["params"]:
        if parameter["kind"] == "tensor_map" and parameter["operand"] in elements:
            operand = parameter["operand"]
            box = 1
            for extent in parameter["box"]:
                box *= extent
            loads += elements[operand] // (sharers[operand] * box)
    return loads


def check(entry: dict, facts: SassFacts) -> list[str]:
    """What of the machine code differs from what the manifest and the design promise; empty if nothing does."""
    wrong = []
    if facts.local_memory_instructions or entry["local_bytes"]:
        wrong.append(f"{facts.local_memory_instructions} local-memory instructions: registers spill")
    if entry["family"].startswith("sm_100"):
        if facts.mma_per_k_block != (wanted := expected_mma_per_k_block(entry)):
            wrong.append(f"{facts.mma_per_k_block} MMAs per K block, {wanted} computed")
        if facts.tma_loads_per_k_block != (wanted := expected_loads_per_k_block(entry)):
            wrong.append(f"{facts.tma_loads_per_k_block} TMA loads per K block, {wanted} computed")
        if facts.lane_loops:
            wrong.append(
                f"{facts.lane_loops} loops over lanes around instructions whose operands are the same in all lanes"
            )
    elif not facts.mma_per_k_block:
        wrong.append("no tensor-core instruction")
    requests = len(facts.clc_request_addresses)
    if requests != (1 if entry["schedule"] == "clc" else 0):
        wrong.append(f"{requests} places that request a tile, schedule {entry['schedule']}")
    if requests and not facts.clc_request_loop:
        wrong.append("the request for the next tile is in no loop")
    return wrong


COLUMNS = ("kernel", "registers", "local", "shared", "tensor columns", "code", "MMA/K block", "TMA loads/K block",
           "TMA stores", "CLC request at")  # fmt: skip


PAGE = """# What the assembler made of the kernels

Written by `python -m jax_clc.cli.sass_report --out docs/sass_report.md`; compiled with {toolchain}. Sizes in bytes;
addresses of requests are offsets into the code.

Every kernel was checked: no local memory; on Blackwell the MMA and TMA instructions per K block as computed from the
tile, and no loop over lanes; one place that requests a tile in each `clc` kernel, none in the others.
"""


def row(entry: dict, facts: SassFacts) -> tuple[str, ...]:
    request = ", ".join(f"{address:#x}" for address in facts.clc_request_addresses) or "-"
    return (
        entry["name"], str(entry["registers"]), str(entry["local_bytes"]), str(entry["dynamic_smem_bytes"]),
        str(entry["tensor_memory_columns"]), f"{facts.code_bytes}", str(facts.mma_per_k_block),
        str(facts.tma_loads_per_k_block), str(facts.tma_stores), request,
    )  # fmt: skip


def table(rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table that can be read as text too."""
    rows = [COLUMNS, *rows]
    widths = [max(len(line[i]) for line in rows) for i in range(len(COLUMNS))]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |" for line in rows]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def report(entries: Sequence[dict], cubins: Path = CUBINS) -> tuple[str, list[str]]:
    """The table of these manifest entries, and what is wrong, a line for each kernel."""
    rows, wrong = [], []
    for entry in entries:
        facts = read_facts(cubins / entry["image"])
        rows.append(row(entry, facts))
        wrong += [f"{entry['name']}: {problem}" for problem in check(entry, facts)]
    return table(rows), wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the report of all kernels of a folder, or writes it as a page; status 1 if a kernel is not as promised."""
    import json

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cubins", type=Path, default=CUBINS)
    parser.add_argument("--out", type=Path, help="write a Markdown page")
    options = parser.parse_args(arguments)
    manifest = json.loads((options.cubins / "manifest.json").read_text())
    text, wrong = report(manifest["kernels"], options.cubins)
    if options.out:
        toolchain = ", ".join(f"{name} {version}" for name, version in manifest["toolchain"].items())
        options.out.write_text(f"{PAGE.format(toolchain=toolchain)}\n{text}\n")
    else:
        print(text)
    print("\n".join(wrong) or f"{len(manifest['kernels'])} kernels as promised")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
