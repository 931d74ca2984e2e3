#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks that the pages in docs/ show the sources as they are and the output that programs print.

  check.py pages ROOT                      code, tables, links and paths of all pages
  check.py output ROOT SOURCE COMMAND...   runs a program, and compares its output with what pages show
  check.py errors ROOT COMPILER            compiles programs that must not compile, and compares the messages

--write as the first argument corrects code, tables and outputs in the pages instead.

A comment before a block of a page names its source:

  <!-- code: examples/tutorial/tensors.cpp create -->     the lines between `// [create]` and `// [/create]`
  <!-- output: examples/tutorial/tensors.cpp create -->   what the program prints after the line `-- create`
  <!-- error: tests/fail/matmul.cpp -->                   lines that the compiler prints, in this order
  <!-- table: examples/cheat_sheet/shapes.cpp numpy -->   rows `//| PyTorch | LibTorch | NumPy | Eigen` and the
                                                          argument of expect or compiles after each, or a fifth cell,
                                                          which must be a part of it
  <!-- sketch -->                                         code that belongs to no program
"""
import pathlib
import re
import subprocess
import sys

arguments = sys.argv[1:]
write = arguments[:1] == ["--write"]
mode, root, *rest = arguments[1:] if write else arguments
root = pathlib.Path(root).resolve()
docs = root / "docs"
pages = sorted(p for p in docs.rglob("*.md") if "site" not in p.relative_to(docs).parts)
shown = pages + [root / "README.md"]  # its blocks are compared if comments name their sources
errors = []


def source_lines(path):
    return (root / path).read_text().splitlines()


def region(path, name):
    """The lines of a region of a source, without its indentation and without lines that only serve the page."""
    lines = source_lines(path)
    if name:
        begin, end = f"// [{name}]", f"// [/{name}]"
        stripped = [line.strip() for line in lines]
        if begin not in stripped or end not in stripped:
            raise ValueError(f"{path} has no region {name}")
        lines = lines[stripped.index(begin) + 1:stripped.index(end)]
    lines = [line for line in lines if not re.match(r'\s*(// \[/?\w+\]|section\(.*\);|// SPDX.*)$', line)]
    while lines and not lines[0].strip():
        lines.pop(0)
    while lines and not lines[-1].strip():
        lines.pop()
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [line[indent:] for line in lines]


LIBRARIES = ["pytorch", "libtorch", "numpy", "eigen"]


def shown_code(statement):
    """The code that a row shows for a statement: the first argument of expect or compiles, or the statement itself."""
    found = re.match(r"(expect|compiles)\((.*)\);$", statement)
    if not found:
        return re.sub(r" compiles\(\w+\)$", "", statement.rstrip(";"))
    inner, depth = found.group(2), 0
    for i, c in enumerate(inner):
        depth += (c in "({[") - (c in ")}]")
        if c == "," and depth == 0 and angle_depth(inner[:i]) == 0:
            return inner[:i].strip()
    return inner


def angle_depth(text):
    """The number of open template argument lists; comparisons have spaces around them."""
    return len(re.findall(r"(?<=\w)<(?! )", text)) - len(re.findall(r"(?<! )>", text))


def table(path, library):
    """The rows of a cheat sheet for one library, as a Markdown table; `//# title` begins a group."""
    column = LIBRARIES.index(library)
    titles = {"pytorch": "PyTorch", "libtorch": "LibTorch", "numpy": "NumPy", "eigen": "Eigen"}
    head = [f"| {titles[library]} | weft |", "|---|---|"]
    lines, rows = source_lines(path), []
    for i, line in enumerate(lines):
        text = line.strip()
        if not text.startswith("//|"):
            continue
        cells = [c.strip().replace("\\|", "|") for c in text[3:].split(" | ")]
        wanted = cells.pop() if len(cells) == len(LIBRARIES) + 1 else None
        if len(cells) != len(LIBRARIES):
            raise ValueError(f"{path}:{i + 1}: {len(cells)} cells, not {len(LIBRARIES)}")
        if cells[column] == "same":
            cells[column] = cells[0]
        if cells[column] == "-":
            continue
        statements, n = [""], i + 1
        while lines[n].strip() not in ("", "}") and not lines[n].strip().startswith("//"):
            statements[-1] = f"{statements[-1]} {lines[n].strip()}".strip()
            if statements[-1].endswith(";"):
                statements.append("")
            n += 1
        code = ", ".join(shown_code(c) for c in statements if c)
        if wanted:
            if wanted not in " ".join(statements):
                raise ValueError(f"{path}:{i + 1}: {wanted} is not compiled after this row")
            code = wanted
        bar = "&#124;"
        them, us = (c.replace("|", bar) for c in (cells[column], code))
        rows.append(f"| {cell(them)} | {cell(us)} |")
    return head + rows


def cell(text):
    return f"<code>{text.replace('&', '&amp;').replace('<', '&lt;').replace('&amp;#124;', '&#124;')}</code>" \
        if "&#124;" in text else f"`{text}`"


class Block:
    """A block of a page and the comment before it; lines[begin:end] are its content."""

    def __init__(self, page, kind, what, begin, end):
        self.page, self.kind, self.what, self.begin, self.end = page, kind, what, begin, end


def blocks(page, lines):
    marker, i = None, 0
    while i < len(lines):
        line = lines[i]
        found = re.match(r"\s*<!-- (code|output|error|table|sketch)(?:: (.*?))? -->$", line)
        if found:
            marker = (found.group(1), (found.group(2) or "").split())
            if marker[0] == "table":
                end = i + 1
                while end < len(lines) and lines[end].startswith("|"):
                    end += 1
                yield Block(page, "table", marker[1], i + 1, end)
                marker, i = None, end
                continue
        elif line.lstrip().startswith("```"):
            fence = line.strip()
            end = i + 1
            while lines[end].strip() != "```":
                end += 1
            kind, what = marker or ("unmarked" if fence.startswith("```cpp") else "plain", [])
            yield Block(page, kind, what, i + 1, end)
            marker, i = None, end
        elif line.strip():
            marker = None
        i += 1


def all_blocks(kind):
    for page in pages if kind == "unmarked" else shown:
        yield from (b for b in blocks(page, page.read_text().splitlines()) if b.kind == kind)


def settle(found, wanted_of):
    """Compares the content of blocks with the expected content, or replaces it."""
    by_page = {}
    for b in found:
        by_page.setdefault(b.page, []).append(b)
    for page, its in by_page.items():
        lines = page.read_text().splitlines()
        for b in reversed(its):
            try:
                wanted, same = wanted_of(b)
            except (ValueError, OSError) as e:
                errors.append(f"{page.relative_to(root)}:{b.begin}: {e}")
                continue
            is_now = lines[b.begin:b.end]
            if same(is_now, wanted):
                continue
            if write:
                lines[b.begin:b.end] = wanted
            else:
                errors.append(f"{page.relative_to(root)}:{b.begin + 1}: is not {' '.join(b.what)}; "
                              f"tests/docs/check.py --write corrects it")
                errors.extend(f"    - {a}\n    + {w}" for a, w in zip(is_now + [""] * 99, wanted + [""] * 99)
                              if a != w and not same([a], [w]))
        if write:
            page.write_text("\n".join(lines) + "\n")


def check_pages():
    equal = lambda a, b: a == b
    settle(all_blocks("code"), lambda b: (region(b.what[0], (b.what + [""])[1]), equal))
    settle(all_blocks("table"), lambda b: (table(*b.what), equal))
    for b in all_blocks("unmarked"):
        errors.append(f"{b.page.relative_to(root)}:{b.begin}: code from nowhere: say <!-- code: FILE REGION -->")
    for b in all_blocks("output"):
        if not (root / b.what[0]).is_file():
            errors.append(f"{b.page.relative_to(root)}:{b.begin}: {b.what[0]} does not exist")
        elif b.what[0] not in programs_that_run():
            errors.append(f"{b.page.relative_to(root)}:{b.begin}: {b.what[0]} is run by no test")
    for page in shown:
        check_links(page)
    check_navigation()
    check_sentences()


def programs_that_run():
    """The sources whose output tests compare, which tests/CMakeLists.txt finds."""
    return {str(p.relative_to(root)) for folder in ("tutorial", "cookbook", "cheat_sheet")
            for p in (root / "examples" / folder).glob("*.cpp")} | {
                "examples/first_model.cpp", "examples/first_model_on_ranks.cpp", "examples/pipeline.cpp",
                "examples/custom_device.cpp", "examples/plan_mesh.cpp"}


def anchors(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    found = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.M):
        plain = re.sub(r"[`*]|\[(.*?)\]\(.*?\)", r"\1", heading)
        found.add(re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return found


PATH = re.compile(r"`((?:include|examples|tests|docs|benchmarks)/[\w./*-]+|"
                  r"(?:base|comm|device|expr|gpu|grad|graph|io|lower|nn|op|optim|parallel|run|shape|tensor|train)/[\w/.*-]+\.hpp|"
                  r"(?:unit|agree|law|fail|fuzz)/[\w/.*-]+)`")


def check_links(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    name = page.relative_to(root)
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        if not to.exists():
            errors.append(f"{name}: link to {target}, which does not exist")
        elif anchor and to.suffix == ".md" and anchor not in anchors(to):
            errors.append(f"{name}: link to {target}: no such heading")
    for path in PATH.findall(text):
        places = [root / path, root / "include/weft" / path, root / "tests" / path]
        if not any(list(p.parent.glob(p.name)) + list(p.parent.glob(p.name + ".cpp")) for p in places):
            errors.append(f"{name}: names {path}, which does not exist")


def check_sentences():
    """Checks that the headers contain the compiler messages that docs/errors.md quotes."""
    page = (docs / "errors.md").read_text()
    page = page[page.index("## From the compiler"):page.index("## At run time")]
    headers = "".join(re.sub(r'"\s*"', "", p.read_text()) for p in (root / "include").rglob("*.[hi]pp"))
    for sentence in re.findall(r"^\| (.*?) \| .*\|$", page, re.M):
        if sentence not in headers and not re.match(r"message$|-+|the compiler's own|undefined reference", sentence):
            errors.append(f"docs/errors.md: no header says: {sentence}")


def check_navigation():
    """Checks that every entry of the site's navigation is a page."""
    listed = set(re.findall(r":? (\S+\.md)$", (docs / "site/mkdocs.yml").read_text(), re.M))
    there = {str(p.relative_to(docs)) for p in pages}
    errors.extend(f"docs/site/mkdocs.yml: {p} does not exist" for p in sorted(listed - there))


NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?|-?\d+e[+-]?\d+")


def same_output(is_now, wanted):
    """Whether texts are equal; numbers with a fraction may differ by one in 200, as other processors add in another order."""
    if len(is_now) != len(wanted):
        return False
    for a, b in zip(is_now, wanted):
        if NUMBER.sub("#", a) != NUMBER.sub("#", b):
            return False
        for x, y in zip(NUMBER.findall(a), NUMBER.findall(b)):
            if abs(float(x) - float(y)) > 5e-3 * max(abs(float(x)), abs(float(y)), 1e-3) + 0.0101 * (len(x) <= 4):
                return False
    return True


def check_output(source, command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300)
    if done.returncode:
        errors.append(f"{source}: exit code {done.returncode}")
        return
    parts, name = {"": []}, ""
    for line in done.stdout.splitlines():
        if line.startswith("-- "):
            name = line[3:]
            parts[name] = []
        else:
            parts[name].append(line)

    def wanted(b):
        part = (b.what + [""])[1]
        if part not in parts:
            raise ValueError(f"{source} prints no part {part}")
        return parts[part], same_output

    settle((b for b in all_blocks("output") if b.what[0] == source), wanted)


def check_errors(compiler):
    if "clang" in subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout:
        sys.exit(77)  # pages show g++'s messages
    for b in all_blocks("error"):
        printed = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", f"-I{root}/include", str(root / b.what[0])],
                                 capture_output=True, text=True).stderr.splitlines()
        at = 0
        for line in b.page.read_text().splitlines()[b.begin:b.end]:
            line = line.strip().strip("…").strip()
            following = [i for i in range(at, len(printed)) if line in printed[i]]
            if not line:
                continue
            if not following:
                errors.append(f"{b.page.relative_to(root)}: {compiler} does not print of {b.what[0]}: {line}")
                break
            at = following[0]


if mode == "pages":
    check_pages()
elif mode == "output":
    check_output(rest[0], rest[1:])
else:
    check_errors(rest[0])
for e in errors:
    print(e if e.startswith(" ") else f"error: {e}")
sys.exit(bool(errors))
